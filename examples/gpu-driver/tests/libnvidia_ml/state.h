/* What the library knows of the GPUs: read from a text at nvmlInit, changed by calls, gone with the process. */
#ifndef STATE_H
#define STATE_H

#include <pthread.h>

#include "nvml_abi.h"

enum { MAX_GPUS = 16, MAX_ROWS = 24, MAX_STARTS = 8, MAX_INSTANCES = 8, MAX_EVENTS = 256, MAX_SETS = 16 };

/* What a device handle points to begins with this: a GPU, or the MIG device of a compute instance. */
struct any {
    enum { GPU = 1, MIG_DEVICE = 2 } kind;
};

struct gi_row {
    unsigned id, number, slices, size, instances, sm, ce, dec, enc, jpeg, ofa, starts, start[MAX_STARTS];
    unsigned long long memory_mib;
};

struct ci_row {
    unsigned parent_slices, id, slices, sm, starts, start[MAX_STARTS];
};

struct compute_instance {
    struct any mig_device;
    int exists;
    unsigned id, profile, start, size;
    char uuid[96];
    struct gpu_instance *parent;
};

struct gpu_instance {
    int exists;
    unsigned id, profile, start;
    struct gpu *gpu;
    struct compute_instance compute[MAX_INSTANCES];
};

struct gpu {
    struct any self;
    char uuid[96], name[96], serial[30];
    unsigned minor, domain, bus, slot, device_id, brand, architecture, major, minor_capability, cores;
    long long memory_mib; /* -1: NVML has no figure */
    int addressing;       /* -1: NVML does not know the question */
    char toggle;          /* n: no MIG, l: its mode changes at once, r: with a reset */
    unsigned mig_current, mig_pending, compute_mode, compute_slices, recovery, made;
    int lost;
    unsigned long long events;
    unsigned modes; /* a bit for each compute mode that it takes */
    unsigned gi_rows, ci_rows;
    struct gi_row gi[MAX_ROWS];
    struct ci_row ci[MAX_ROWS];
    struct gpu_instance instances[MAX_INSTANCES];
};

struct state {
    int opened;     /* nvmlInit less nvmlShutdown */
    int loaded;     /* the text was read */
    int no_driver;  /* nvmlInit says that the driver is not loaded */
    int permission; /* whether the caller is root */
    char driver[80];
    int cuda;
    unsigned gpus;
    struct gpu gpu[MAX_GPUS];
    unsigned events; /* how many there were; the last MAX_EVENTS are kept */
    struct event_data event[MAX_EVENTS];
};

extern struct state state;
extern pthread_mutex_t mutex;
extern pthread_cond_t happened;

/* Read the text that NVML_DOUBLE_PROFILE names; 0 when it cannot be read. */
int load(void);

/* The GPU of a handle, and why it cannot be asked. */
answer gpu_of(device handle, struct gpu **found);

/* The same where it must have MIG. */
answer mig_gpu_of(device handle, struct gpu **found);

/* The instances behind handles; those that are gone are invalid arguments. */
answer instance_of(gpu_instance handle, struct gpu_instance **found);
answer compute_of(compute_instance handle, struct compute_instance **found);

struct gi_row *gi_row(struct gpu *gpu, unsigned id);
struct ci_row *ci_row(struct gpu *gpu, struct gpu_instance *parent, unsigned id);

struct gpu_instance *add_instance(struct gpu *gpu, struct gi_row *row, unsigned start);
struct compute_instance *add_compute(struct gpu_instance *parent, struct ci_row *row, unsigned start);

/* Every call runs alone. */
#define ALONE __attribute__((cleanup(leave))) int alone = enter(); (void)alone
int enter(void);
void leave(int *alone);

#define TRY(call)            \
    do {                     \
        answer code = call;  \
        if (code)            \
            return code;     \
    } while (0)

#endif
