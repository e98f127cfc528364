/* MIG: its mode, profiles, and GPU instances. */
#include "state.h"

API answer nvmlDeviceGetMigMode(device handle, unsigned *current, unsigned *pending)
{
    ALONE;
    struct gpu *gpu;
    TRY(mig_gpu_of(handle, &gpu));
    *current = gpu->mig_current;
    *pending = gpu->mig_pending;
    return OK;
}

static int has_instances(struct gpu *gpu)
{
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].exists)
            return 1;
    return 0;
}

/* The mode is pending in any case; the reason why it is not in force is returned separately. */
API answer nvmlDeviceSetMigMode(device handle, unsigned mode, answer *activation)
{
    ALONE;
    struct gpu *gpu;
    TRY(mig_gpu_of(handle, &gpu));
    if (!state.permission)
        return NO_PERMISSION;
    if (mode > 1)
        return INVALID_ARGUMENT;
    gpu->mig_pending = mode;
    *activation = OK;
    if (mode == gpu->mig_current)
        return OK;
    if (!mode && has_instances(gpu))
        *activation = IN_USE;
    else if (gpu->toggle == 'r')
        *activation = RESET_REQUIRED;
    else {
        gpu->mig_current = mode;
        if (mode)
            gpu->compute_mode = 0;
    }
    return OK;
}

API answer nvmlDeviceGetGpuInstanceProfileInfo(device handle, unsigned number, struct gpu_instance_profile *info)
{
    ALONE;
    struct gpu *gpu;
    TRY(mig_gpu_of(handle, &gpu));
    if (number >= 0x12)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < gpu->gi_rows; i++) {
        struct gi_row *row = &gpu->gi[i];
        if (row->number != number)
            continue;
        *info = (struct gpu_instance_profile){row->id,  0,        row->slices, row->instances, row->sm,        row->ce,
                                              row->dec, row->enc, row->jpeg,   row->ofa,       row->memory_mib};
        return OK;
    }
    return NOT_SUPPORTED;
}

/* Also while MIG is off, but to root alone (nvml.h: "Requires privileged user"). */
API answer nvmlDeviceGetGpuInstancePossiblePlacements_v2(device handle, unsigned profile, struct placement *places,
                                                         unsigned *count)
{
    ALONE;
    struct gpu *gpu;
    TRY(mig_gpu_of(handle, &gpu));
    if (!state.permission)
        return NO_PERMISSION;
    struct gi_row *row = gi_row(gpu, profile);
    if (!row)
        return INVALID_ARGUMENT;
    *count = row->starts;
    for (unsigned i = 0; places && i < row->starts; i++)
        places[i] = (struct placement){row->start[i], row->size};
    return OK;
}

static answer enabled(device handle, struct gpu **gpu)
{
    TRY(mig_gpu_of(handle, gpu));
    if (!state.permission)
        return NO_PERMISSION;
    return (*gpu)->mig_current ? OK : NOT_SUPPORTED;
}

static int possible(struct gi_row *row, const struct placement *place)
{
    for (unsigned i = 0; i < row->starts; i++)
        if (row->start[i] == place->start && row->size == place->size)
            return 1;
    return 0;
}

/* Memory slices are exclusive; compute slices are counted; some profiles exist only so often. */
static int fits(struct gpu *gpu, struct gi_row *row, unsigned start)
{
    unsigned slices = row->slices, same = 0;
    for (unsigned i = 0; i < MAX_INSTANCES; i++) {
        struct gpu_instance *other = &gpu->instances[i];
        if (!other->exists)
            continue;
        struct gi_row *its = gi_row(gpu, other->profile);
        if (start < other->start + its->size && other->start < start + row->size)
            return 0;
        slices += its->slices;
        same += its == row;
    }
    return slices <= gpu->compute_slices && same < row->instances;
}

API answer nvmlDeviceCreateGpuInstanceWithPlacement(device handle, unsigned profile, const struct placement *place,
                                                    gpu_instance *made)
{
    ALONE;
    struct gpu *gpu;
    TRY(enabled(handle, &gpu));
    struct gi_row *row = gi_row(gpu, profile);
    if (!row || !possible(row, place))
        return INVALID_ARGUMENT;
    if (!fits(gpu, row, place->start))
        return INSUFFICIENT_RESOURCES;
    *made = add_instance(gpu, row, place->start);
    return OK;
}

API answer nvmlGpuInstanceDestroy(gpu_instance handle)
{
    ALONE;
    struct gpu_instance *instance;
    TRY(instance_of(handle, &instance));
    if (!state.permission)
        return NO_PERMISSION;
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (instance->compute[i].exists)
            return IN_USE;
    instance->exists = 0;
    return OK;
}

API answer nvmlDeviceGetGpuInstances(device handle, unsigned profile, gpu_instance *instances, unsigned *count)
{
    ALONE;
    struct gpu *gpu;
    TRY(enabled(handle, &gpu));
    if (!gi_row(gpu, profile))
        return INVALID_ARGUMENT;
    *count = 0;
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].exists && gpu->instances[i].profile == profile)
            instances[(*count)++] = &gpu->instances[i];
    return OK;
}

API answer nvmlDeviceGetGpuInstanceById(device handle, unsigned id, gpu_instance *instance)
{
    ALONE;
    struct gpu *gpu;
    TRY(enabled(handle, &gpu));
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].exists && gpu->instances[i].id == id) {
            *instance = &gpu->instances[i];
            return OK;
        }
    return NOT_FOUND;
}

API answer nvmlGpuInstanceGetInfo(gpu_instance handle, struct gpu_instance_info *info)
{
    ALONE;
    struct gpu_instance *instance;
    TRY(instance_of(handle, &instance));
    unsigned size = gi_row(instance->gpu, instance->profile)->size;
    *info = (struct gpu_instance_info){
        &instance->gpu->self, instance->id, instance->profile, {instance->start, size}};
    return OK;
}
