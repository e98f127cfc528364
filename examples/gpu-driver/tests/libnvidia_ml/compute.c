/* MIG: compute instances, and the MIG devices that CUDA sees. */
#include "state.h"

static answer cut(gpu_instance handle, unsigned id, struct gpu_instance **parent, struct ci_row **row)
{
    TRY(instance_of(handle, parent));
    if (id >= 9)
        return INVALID_ARGUMENT;
    *row = ci_row((*parent)->gpu, *parent, id);
    return *row ? OK : NOT_SUPPORTED;
}

/* Profiles have the numbers that they are asked for with. */
API answer nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance handle, unsigned number, unsigned engines,
                                                        struct compute_instance_profile *info)
{
    ALONE;
    struct gpu_instance *parent;
    struct ci_row *row;
    if (engines)
        return INVALID_ARGUMENT;
    TRY(cut(handle, number, &parent, &row));
    struct gi_row *whole = gi_row(parent->gpu, parent->profile);
    unsigned sm = row->slices == whole->slices ? whole->sm : row->sm;
    *info = (struct compute_instance_profile){row->id, row->slices, row->starts, sm, 0, 0, 0, 0, 0};
    return OK;
}

API answer nvmlGpuInstanceGetComputeInstancePossiblePlacements(gpu_instance handle, unsigned profile,
                                                               struct placement *places, unsigned *count)
{
    ALONE;
    struct gpu_instance *parent;
    struct ci_row *row;
    TRY(cut(handle, profile, &parent, &row));
    *count = row->starts;
    for (unsigned i = 0; places && i < row->starts; i++)
        places[i] = (struct placement){row->start[i], row->slices};
    return OK;
}

static int is_free(struct gpu_instance *parent, unsigned start, unsigned size)
{
    for (unsigned i = 0; i < MAX_INSTANCES; i++) {
        struct compute_instance *other = &parent->compute[i];
        if (other->exists && start < other->start + other->size && other->start < start + size)
            return 0;
    }
    return 1;
}

static answer create(gpu_instance handle, unsigned profile, const struct placement *place, compute_instance *made)
{
    struct gpu_instance *parent;
    struct ci_row *row;
    int possible = !place;
    TRY(cut(handle, profile, &parent, &row));
    if (!state.permission)
        return NO_PERMISSION;
    for (unsigned i = 0; i < row->starts; i++) {
        if (place && (place->start != row->start[i] || place->size != row->slices))
            continue;
        possible = 1;
        if (is_free(parent, row->start[i], row->slices)) {
            *made = add_compute(parent, row, row->start[i]);
            return OK;
        }
    }
    return possible ? INSUFFICIENT_RESOURCES : INVALID_ARGUMENT;
}

API answer nvmlGpuInstanceCreateComputeInstance(gpu_instance handle, unsigned profile, compute_instance *made)
{
    ALONE;
    return create(handle, profile, 0, made);
}

API answer nvmlGpuInstanceCreateComputeInstanceWithPlacement(gpu_instance handle, unsigned profile,
                                                             const struct placement *place, compute_instance *made)
{
    ALONE;
    return create(handle, profile, place, made);
}

API answer nvmlComputeInstanceDestroy(compute_instance handle)
{
    ALONE;
    struct compute_instance *made;
    TRY(compute_of(handle, &made));
    if (!state.permission)
        return NO_PERMISSION;
    made->exists = 0;
    return OK;
}

API answer nvmlGpuInstanceGetComputeInstances(gpu_instance handle, unsigned profile, compute_instance *found,
                                              unsigned *count)
{
    ALONE;
    struct gpu_instance *parent;
    struct ci_row *row;
    TRY(cut(handle, profile, &parent, &row));
    *count = 0;
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (parent->compute[i].exists && parent->compute[i].profile == profile)
            found[(*count)++] = &parent->compute[i];
    return OK;
}

API answer nvmlGpuInstanceGetComputeInstanceById(gpu_instance handle, unsigned id, compute_instance *found)
{
    ALONE;
    struct gpu_instance *parent;
    TRY(instance_of(handle, &parent));
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (parent->compute[i].exists && parent->compute[i].id == id) {
            *found = &parent->compute[i];
            return OK;
        }
    return NOT_FOUND;
}

API answer nvmlComputeInstanceGetInfo_v2(compute_instance handle, struct compute_instance_info *info)
{
    ALONE;
    struct compute_instance *made;
    TRY(compute_of(handle, &made));
    *info = (struct compute_instance_info){
        &made->parent->gpu->self, made->parent, made->id, made->profile, {made->start, made->size}};
    return OK;
}

API answer nvmlDeviceGetMaxMigDeviceCount(device handle, unsigned *count)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    *count = gpu->toggle == 'n' ? 0 : gpu->compute_slices;
    return OK;
}

/* Indices count the MIG devices that exist. */
API answer nvmlDeviceGetMigDeviceHandleByIndex(device handle, unsigned index, device *found)
{
    ALONE;
    struct gpu *gpu;
    unsigned seen = 0;
    TRY(mig_gpu_of(handle, &gpu));
    if (index >= gpu->compute_slices)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        for (unsigned j = 0; gpu->instances[i].exists && j < MAX_INSTANCES; j++)
            if (gpu->instances[i].compute[j].exists && seen++ == index) {
                *found = &gpu->instances[i].compute[j].mig_device;
                return OK;
            }
    return NOT_FOUND;
}

API answer nvmlDeviceGetGpuInstanceId(device handle, unsigned *id)
{
    ALONE;
    struct compute_instance *made;
    if (!handle || handle->kind != MIG_DEVICE)
        return INVALID_ARGUMENT;
    TRY(compute_of((compute_instance)handle, &made));
    *id = made->parent->id;
    return OK;
}

API answer nvmlDeviceGetComputeInstanceId(device handle, unsigned *id)
{
    ALONE;
    struct compute_instance *made;
    if (!handle || handle->kind != MIG_DEVICE)
        return INVALID_ARGUMENT;
    TRY(compute_of((compute_instance)handle, &made));
    *id = made->id;
    return OK;
}
