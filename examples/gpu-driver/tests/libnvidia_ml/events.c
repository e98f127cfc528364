/* Event sets, and what tests let happen: the functions that begin with double_ are not NVML's. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "state.h"

struct event_set {
    int exists;
    unsigned read;
    unsigned long long wanted[MAX_GPUS];
};

static struct event_set sets[MAX_SETS];

API answer nvmlDeviceGetSupportedEventTypes(device handle, unsigned long long *types)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    *types = gpu->events;
    return OK;
}

API answer nvmlEventSetCreate(event_set *set)
{
    ALONE;
    if (!state.opened)
        return UNINITIALIZED;
    for (unsigned i = 0; i < MAX_SETS; i++)
        if (!sets[i].exists) {
            sets[i] = (struct event_set){1, state.events, {0}};
            *set = &sets[i];
            return OK;
        }
    return MEMORY;
}

API answer nvmlDeviceRegisterEvents(device handle, unsigned long long types, event_set set)
{
    ALONE;
    struct gpu *gpu;
    TRY(gpu_of(handle, &gpu));
    if (!set || !set->exists)
        return INVALID_ARGUMENT;
    if (types & ~gpu->events)
        return NOT_SUPPORTED;
    set->wanted[gpu - state.gpu] |= types;
    return OK;
}

static int next(event_set set, struct event_data *data)
{
    while (set->read < state.events) {
        struct event_data *event = &state.event[set->read++ % MAX_EVENTS];
        struct gpu *gpu = (struct gpu *)event->device;
        if (set->wanted[gpu - state.gpu] & event->type) {
            *data = *event;
            return 1;
        }
    }
    return 0;
}

static int watches_lost(event_set set)
{
    for (unsigned i = 0; i < state.gpus; i++)
        if (set->wanted[i] && state.gpu[i].lost)
            return 1;
    return 0;
}

API answer nvmlEventSetWait_v2(event_set set, struct event_data *data, unsigned timeout)
{
    ALONE;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(timeout % 1000) * 1000000;
    until.tv_sec += timeout / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    for (;;) {
        if (!state.opened)
            return UNINITIALIZED;
        if (!set || !set->exists)
            return INVALID_ARGUMENT;
        if (next(set, data))
            return OK;
        if (watches_lost(set))
            return GPU_IS_LOST;
        if (pthread_cond_timedwait(&happened, &mutex, &until) == ETIMEDOUT)
            return TIMEOUT;
    }
}

API answer nvmlEventSetFree(event_set set)
{
    ALONE;
    if (!state.opened)
        return UNINITIALIZED;
    if (!set || !set->exists)
        return INVALID_ARGUMENT;
    set->exists = 0;
    return OK;
}

static struct gpu *named(const char *uuid)
{
    for (unsigned i = 0; i < state.gpus; i++)
        if (!strcmp(state.gpu[i].uuid, uuid))
            return &state.gpu[i];
    return NULL;
}

static void happen(struct gpu *gpu, unsigned long long type, unsigned long long data, unsigned instance)
{
    if (type & gpu->events)
        state.event[state.events++ % MAX_EVENTS] = (struct event_data){&gpu->self, type, data, instance, WHOLE_GPU};
    pthread_cond_broadcast(&happened);
}

API void double_xid(const char *uuid, unsigned number, unsigned instance)
{
    ALONE;
    happen(named(uuid), EVENT_XID, number, instance);
}

API void double_lose(const char *uuid, int lost)
{
    ALONE;
    struct gpu *gpu = named(uuid);
    gpu->lost = lost;
    if (lost)
        happen(gpu, EVENT_UNAVAILABLE, 0, WHOLE_GPU);
}

API void double_want_recovery(const char *uuid, unsigned action)
{
    ALONE;
    struct gpu *gpu = named(uuid);
    gpu->recovery = action;
    happen(gpu, EVENT_RECOVERY, 0, WHOLE_GPU);
}

/* Whether the caller is root, and whether the driver is there. */
API void double_set(int permission, int driver)
{
    ALONE;
    state.permission = permission;
    state.no_driver = !driver;
}

/* How many sessions are open. */
API int double_opened(void)
{
    ALONE;
    return state.opened;
}

/* As if the driver was loaded again: every session is closed, and the text is read again. */
API void double_restart(void)
{
    ALONE;
    memset(&state, 0, sizeof state);
    memset(sets, 0, sizeof sets);
    state.permission = 1;
    pthread_cond_broadcast(&happened);
}
