#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct state state = {.permission = 1};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t happened = PTHREAD_COND_INITIALIZER;

int enter(void)
{
    return pthread_mutex_lock(&mutex);
}

void leave(int *alone)
{
    (void)alone;
    pthread_mutex_unlock(&mutex);
}

static int starts(const char *text, unsigned *count, unsigned *start)
{
    int used = 0;
    if (sscanf(text, "%u%n", count, &used) != 1 || *count > MAX_STARTS)
        return 0;
    for (unsigned i = 0; i < *count; i++) {
        int more = 0;
        text += used;
        if (sscanf(text, "%u%n", &start[i], &more) != 1)
            return 0;
        used = more;
    }
    return 1;
}

static int read_gpu(const char *line)
{
    struct gpu *gpu = &state.gpu[state.gpus];
    int used = 0;
    if (state.gpus == MAX_GPUS)
        return 0;
    int read = sscanf(line, "%95s %29s %u %x %x %x %x %u %u %u %u %u %lld %d %c %u %u %llx %x %n", gpu->uuid, gpu->serial,
                      &gpu->minor, &gpu->domain, &gpu->bus, &gpu->slot, &gpu->device_id, &gpu->brand,
                      &gpu->architecture, &gpu->major, &gpu->minor_capability, &gpu->cores, &gpu->memory_mib,
                      &gpu->addressing, &gpu->toggle, &gpu->mig_current, &gpu->compute_slices, &gpu->events,
                      &gpu->modes, &used);
    if (read != 19)
        return 0;
    snprintf(gpu->name, sizeof gpu->name, "%s", line + used);
    gpu->self.kind = GPU;
    gpu->mig_pending = gpu->mig_current;
    state.gpus++;
    return 1;
}

static int read_gi(struct gpu *gpu, const char *line)
{
    struct gi_row *row = &gpu->gi[gpu->gi_rows++];
    int used = 0;
    int read = sscanf(line, "%u %u %u %u %llu %u %u %u %u %u %u %u %n", &row->id, &row->number, &row->slices,
                      &row->size, &row->memory_mib, &row->sm, &row->ce, &row->dec, &row->enc, &row->jpeg, &row->ofa,
                      &row->instances, &used);
    return read == 12 && starts(line + used, &row->starts, row->start);
}

static int read_ci(struct gpu *gpu, const char *line)
{
    struct ci_row *row = &gpu->ci[gpu->ci_rows++];
    int used = 0;
    int read = sscanf(line, "%u %u %u %u %n", &row->parent_slices, &row->id, &row->slices, &row->sm, &used);
    return read == 4 && starts(line + used, &row->starts, row->start);
}

/* An instance of another creator: with one compute instance over all of it. */
static int read_foreign(struct gpu *gpu, const char *line)
{
    unsigned profile, start, compute;
    char uuid[96];
    if (sscanf(line, "%u %u %u %95s", &profile, &start, &compute, uuid) != 4)
        return 0;
    struct gpu_instance *made = add_instance(gpu, gi_row(gpu, profile), start);
    struct compute_instance *part = add_compute(made, ci_row(gpu, made, compute), 0);
    snprintf(part->uuid, sizeof part->uuid, "%s", uuid);
    return 1;
}

static int read_line(char *line)
{
    struct gpu *gpu = state.gpus ? &state.gpu[state.gpus - 1] : NULL;
    line[strcspn(line, "\n")] = 0;
    if (!strncmp(line, "driver ", 7))
        return snprintf(state.driver, sizeof state.driver, "%s", line + 7) > 0;
    if (!strncmp(line, "cuda ", 5))
        return (state.cuda = atoi(line + 5)) > 0;
    if (!strncmp(line, "gpu ", 4))
        return read_gpu(line + 4);
    if (gpu && gpu->gi_rows < MAX_ROWS && !strncmp(line, "gi ", 3))
        return read_gi(gpu, line + 3);
    if (gpu && gpu->ci_rows < MAX_ROWS && !strncmp(line, "ci ", 3))
        return read_ci(gpu, line + 3);
    return gpu && !strncmp(line, "foreign ", 8) && read_foreign(gpu, line + 8);
}

int load(void)
{
    const char *path = getenv("NVML_DOUBLE_PROFILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    if (!file)
        return 0;
    if (getenv("NVML_DOUBLE_NOT_ROOT"))
        state.permission = 0;
    while (fgets(line, sizeof line, file))
        if (!read_line(line)) {
            fprintf(stderr, "%s: not understood: %s\n", path, line);
            fclose(file);
            return 0;
        }
    fclose(file);
    return 1;
}

answer gpu_of(device handle, struct gpu **found)
{
    if (!state.opened)
        return UNINITIALIZED;
    for (unsigned i = 0; i < state.gpus; i++)
        if (handle == &state.gpu[i].self) {
            *found = &state.gpu[i];
            return state.gpu[i].lost ? GPU_IS_LOST : OK;
        }
    return INVALID_ARGUMENT;
}

answer mig_gpu_of(device handle, struct gpu **found)
{
    TRY(gpu_of(handle, found));
    return (*found)->toggle == 'n' ? NOT_SUPPORTED : OK;
}

answer instance_of(gpu_instance handle, struct gpu_instance **found)
{
    if (!state.opened)
        return UNINITIALIZED;
    for (unsigned i = 0; i < state.gpus; i++)
        for (unsigned j = 0; j < MAX_INSTANCES; j++)
            if (handle == &state.gpu[i].instances[j] && handle->exists) {
                *found = handle;
                return state.gpu[i].lost ? GPU_IS_LOST : OK;
            }
    return INVALID_ARGUMENT;
}

answer compute_of(compute_instance handle, struct compute_instance **found)
{
    struct gpu_instance *parent;
    if (!state.opened)
        return UNINITIALIZED;
    if (!handle || !handle->exists)
        return INVALID_ARGUMENT;
    TRY(instance_of(handle->parent, &parent));
    *found = handle;
    return OK;
}

struct gi_row *gi_row(struct gpu *gpu, unsigned id)
{
    for (unsigned i = 0; i < gpu->gi_rows; i++)
        if (gpu->gi[i].id == id)
            return &gpu->gi[i];
    return NULL;
}

struct ci_row *ci_row(struct gpu *gpu, struct gpu_instance *parent, unsigned id)
{
    unsigned slices = gi_row(gpu, parent->profile)->slices;
    for (unsigned i = 0; i < gpu->ci_rows; i++)
        if (gpu->ci[i].parent_slices == slices && gpu->ci[i].id == id)
            return &gpu->ci[i];
    return NULL;
}

static unsigned unused(int (*taken)(void *, unsigned), void *of, unsigned first)
{
    while (taken(of, first))
        first++;
    return first;
}

static int instance_id_taken(void *of, unsigned id)
{
    struct gpu *gpu = of;
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].exists && gpu->instances[i].id == id)
            return 1;
    return 0;
}

static int compute_id_taken(void *of, unsigned id)
{
    struct gpu_instance *parent = of;
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (parent->compute[i].exists && parent->compute[i].id == id)
            return 1;
    return 0;
}

struct gpu_instance *add_instance(struct gpu *gpu, struct gi_row *row, unsigned start)
{
    unsigned id = unused(instance_id_taken, gpu, 1);
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (!gpu->instances[i].exists) {
            gpu->instances[i] = (struct gpu_instance){
                .exists = 1, .id = id, .profile = row->id, .start = start, .gpu = gpu};
            return &gpu->instances[i];
        }
    return NULL;
}

struct compute_instance *add_compute(struct gpu_instance *parent, struct ci_row *row, unsigned start)
{
    unsigned id = unused(compute_id_taken, parent, 0);
    for (unsigned i = 0; i < MAX_INSTANCES; i++)
        if (!parent->compute[i].exists) {
            struct compute_instance *made = &parent->compute[i];
            *made = (struct compute_instance){.mig_device = {MIG_DEVICE}, .exists = 1, .id = id, .profile = row->id,
                                              .start = start, .size = row->slices, .parent = parent};
            snprintf(made->uuid, sizeof made->uuid, "MIG-00000000-0000-5000-8000-%04x%08x",
                     parent->gpu->minor & 0xffffu, ++parent->gpu->made);
            return made;
        }
    return NULL;
}
