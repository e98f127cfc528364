/* The library itself, and its calls for whole GPUs. */
#include <stdio.h>
#include <string.h>

#include "state.h"

static answer text(char *to, unsigned size, const char *from)
{
    if (strlen(from) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

API answer nvmlInitWithFlags(unsigned flags)
{
    ALONE;
    (void)flags;
    if (state.no_driver || (!state.loaded && !load()))
        return DRIVER_NOT_LOADED;
    state.loaded = 1;
    state.opened++;
    return OK;
}

API answer nvmlShutdown(void)
{
    ALONE;
    if (!state.opened)
        return UNINITIALIZED;
    state.opened--;
    return OK;
}

API const char *nvmlErrorString(answer code)
{
    (void)code;
    return "an error of a double";
}

API answer nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    ALONE;
    return state.opened ? text(version, size, state.driver) : UNINITIALIZED;
}

API answer nvmlSystemGetCudaDriverVersion(int *version)
{
    ALONE;
    if (!state.opened)
        return UNINITIALIZED;
    *version = state.cuda;
    return OK;
}

API answer nvmlDeviceGetCount_v2(unsigned *count)
{
    ALONE;
    if (!state.opened)
        return UNINITIALIZED;
    *count = state.gpus;
    return OK;
}

API answer nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle)
{
    ALONE;
    struct gpu *gpu;
    if (!state.opened)
        return UNINITIALIZED;
    if (index >= state.gpus)
        return INVALID_ARGUMENT;
    *handle = &state.gpu[index].self;
    return gpu_of(*handle, &gpu);
}

/* As nvml.h says, one lost GPU is enough for it to fail, whichever is asked for. */
API answer nvmlDeviceGetHandleByUUID(const char *uuid, device *handle)
{
    ALONE;
    if (!state.opened)
        return UNINITIALIZED;
    for (unsigned i = 0; i < state.gpus; i++)
        if (state.gpu[i].lost)
            return GPU_IS_LOST;
    for (unsigned i = 0; i < state.gpus; i++)
        if (!strcmp(state.gpu[i].uuid, uuid)) {
            *handle = &state.gpu[i].self;
            return OK;
        }
    return NOT_FOUND;
}

API answer nvmlDeviceGetUUID(device handle, char *uuid, unsigned size)
{
    ALONE;
    struct gpu *gpu;
    if (handle && handle->kind == MIG_DEVICE) {
        struct compute_instance *made;
        TRY(compute_of((compute_instance)handle, &made));
        return text(uuid, size, made->uuid);
    }
    TRY(gpu_of(handle, &gpu));
    return text(uuid, size, gpu->uuid);
}

API answer nvmlDeviceGetName(device handle, char *name, unsigned size)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    return text(name, size, gpu->name);
}

API answer nvmlDeviceGetSerial(device handle, char *serial, unsigned size)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    return text(serial, size, gpu->serial);
}

#define NUMBER(function, member)                      \
    API answer function(device handle, unsigned *out) \
    {                                                 \
        ALONE;                                        \
        struct gpu *gpu;                              \
        TRY(gpu_of(handle, &gpu));                    \
        *out = gpu->member;                           \
        return OK;                                    \
    }

NUMBER(nvmlDeviceGetMinorNumber, minor)
NUMBER(nvmlDeviceGetBrand, brand)
NUMBER(nvmlDeviceGetArchitecture, architecture)
NUMBER(nvmlDeviceGetComputeMode, compute_mode)

API answer nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    *major = (int)gpu->major;
    *minor = (int)gpu->minor_capability;
    return OK;
}

API answer nvmlDeviceGetPciInfo_v3(device handle, struct pci_info *info)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    memset(info, 0, sizeof *info);
    info->domain = gpu->domain;
    info->bus = gpu->bus;
    info->device = gpu->slot;
    info->device_id = gpu->device_id << 16 | 0x10de;
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff,
             gpu->bus & 0xff, gpu->slot & 0xff);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->slot);
    return OK;
}

API answer nvmlDeviceGetMemoryInfo(device handle, struct memory *memory)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    if (gpu->memory_mib < 0)
        return NOT_SUPPORTED;
    if (gpu->mig_current && !state.permission) /* of all partitions: for root alone */
        return NO_PERMISSION;
    memory->total = memory->free = (unsigned long long)gpu->memory_mib << 20;
    memory->used = 0;
    return OK;
}

/* Not while MIG is on, as nvml.h says. */
API answer nvmlDeviceGetNumGpuCores(device handle, unsigned *cores)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    if (gpu->mig_current)
        return NOT_SUPPORTED;
    *cores = gpu->cores;
    return OK;
}

API answer nvmlDeviceGetAddressingMode(device handle, struct addressing_mode *mode)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    if (mode->version != ADDRESSING_MODE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    if (gpu->addressing < 0)
        return NOT_SUPPORTED;
    mode->value = (unsigned)gpu->addressing;
    return OK;
}

API answer nvmlDeviceSetComputeMode(device handle, unsigned mode)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    if (!state.permission)
        return NO_PERMISSION;
    if (mode > 3)
        return INVALID_ARGUMENT;
    if (gpu->mig_current || !(gpu->modes >> mode & 1))
        return NOT_SUPPORTED; /* with MIG only for the handle of a MIG device */
    gpu->compute_mode = mode;
    return OK;
}

/* One field is known: what the driver asks for to make the GPU healthy. */
API answer nvmlDeviceGetFieldValues(device handle, int count, struct field_value *values)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    for (int i = 0; i < count; i++) {
        /* a field that came with the event of its name; old drivers do not know its number */
        values[i].answer = values[i].field == 230 && gpu->events & EVENT_RECOVERY ? OK : INVALID_ARGUMENT;
        values[i].type = 1;
        values[i].value.u = gpu->recovery;
    }
    return OK;
}
