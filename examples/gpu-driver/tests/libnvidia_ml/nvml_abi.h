/* The part of NVML's binary interface that this library answers, as nvidia-ml-py declares it with ctypes. */
#ifndef NVML_ABI_H
#define NVML_ABI_H

#include <stdint.h>

#define API __attribute__((visibility("default")))

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    MEMORY = 20,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
};

typedef int answer;
typedef struct any *device;
typedef struct gpu_instance *gpu_instance;
typedef struct compute_instance *compute_instance;
typedef struct event_set *event_set;

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct memory {
    unsigned long long total, free, used;
};

struct addressing_mode {
    unsigned version, value;
};
#define ADDRESSING_MODE_V1 0x1000008u

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency;
    unsigned type, answer;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

struct placement {
    unsigned start, size;
};

struct gpu_instance_profile {
    unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
};

struct compute_instance_profile {
    unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
};

struct gpu_instance_info {
    device device;
    unsigned id, profile;
    struct placement placement;
};

struct compute_instance_info {
    device device;
    gpu_instance parent;
    unsigned id, profile;
    struct placement placement;
};

struct event_data {
    device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

#define WHOLE_GPU 0xFFFFFFFFu
#define EVENT_XID 0x8ull
#define EVENT_UNAVAILABLE 0x4000ull
#define EVENT_RECOVERY 0x8000ull

#endif
