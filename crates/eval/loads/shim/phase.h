/*
 * What a phase is, and how it is read: lines of "key value" that the conductor wrote (phase.rs).
 */
#ifndef PHASE_H
#define PHASE_H
#include "base.h"

#define HINTS_MAX 64

enum access { WRITE, READ, CHECK };
enum order { SEQUENTIAL, RANDOM_IN_BLOCK, RANDOM_IN_FILE };
enum pattern { OWN, OLD, OLD_OFFSET, NEW, NEW_OFFSET, INCOMPRESSIBLE, RANDOM };

struct phase {
    enum access access;
    int is_mpiio, ranks, has_own_files, is_direct, has_fsync, has_fsync_per_write, has_barriers;
    int is_collective, has_view, is_single_attempt, is_new, is_rw, wears_out, wants_info;
    enum order order;
    enum pattern pattern;
    uint64_t stamp, block, transfer, segments, preallocate, memory, delay_us, cap;
    unsigned seed;
    double deadline, duration_min;
    int part;
    const char *file;
    int hints;
    const char *hint_keys[HINTS_MAX], *hint_values[HINTS_MAX];
};

/* What a rank answers. */
struct answer {
    double t[6];
    uint64_t bytes, calls, errors, wrong_at;
};

/* A number of a list, e.g. the part of this rank. */
static uint64_t nth(char *list, int index)
{
    char *next = list;
    uint64_t value = strtoull(list, &next, 10);
    while (index-- > 0) {
        list = next;
        value = strtoull(list, &next, 10);
        if (next == list)
            die("a list is too short");
    }
    return value;
}

static void set_number(struct phase *phase, const char *key, const char *value)
{
    const struct {
        const char *key;
        int *flag;
        uint64_t *number;
    } all[] = {
        {"mpiio", &phase->is_mpiio, NULL},
        {"own-files", &phase->has_own_files, NULL},
        {"direct", &phase->is_direct, NULL},
        {"fsync", &phase->has_fsync, NULL},
        {"fsync-per-write", &phase->has_fsync_per_write, NULL},
        {"barriers", &phase->has_barriers, NULL},
        {"collective", &phase->is_collective, NULL},
        {"view", &phase->has_view, NULL},
        {"single-attempt", &phase->is_single_attempt, NULL},
        {"new", &phase->is_new, NULL},
        {"read-write", &phase->is_rw, NULL},
        {"wears-out", &phase->wears_out, NULL},
        {"info", &phase->wants_info, NULL},
        {"ranks", &phase->ranks, NULL},
        {"stamp", NULL, &phase->stamp},
        {"block", NULL, &phase->block},
        {"transfer", NULL, &phase->transfer},
        {"segments", NULL, &phase->segments},
        {"preallocate", NULL, &phase->preallocate},
        {"memory", NULL, &phase->memory},
        {"delay-us", NULL, &phase->delay_us},
    };
    size_t index;
    for (index = 0; index < sizeof all / sizeof *all; index++) {
        if (strcmp(key, all[index].key))
            continue;
        if (all[index].flag)
            *all[index].flag = atoi(value);
        else
            *all[index].number = strtoull(value, NULL, 10);
        return;
    }
    die("unknown key %s", key);
}

static void set(struct phase *phase, const char *key, char *value, int *files)
{
    int is_member = world_rank < phase->ranks;
    if (!strcmp(key, "access")) {
        phase->access = atoi(value);
    } else if (!strcmp(key, "order")) {
        phase->order = atoi(value);
    } else if (!strcmp(key, "pattern")) {
        phase->pattern = atoi(value);
    } else if (!strcmp(key, "seed")) {
        phase->seed = (unsigned)strtoul(value, NULL, 10);
    } else if (!strcmp(key, "deadline")) {
        phase->deadline = atof(value);
    } else if (!strcmp(key, "duration-min")) {
        phase->duration_min = atof(value);
    } else if (!strcmp(key, "parts")) {
        phase->part = is_member ? (int)nth(value, world_rank) : 0;
    } else if (!strcmp(key, "caps")) {
        phase->cap = is_member ? nth(value, world_rank) : 0;
    } else if (!strcmp(key, "file")) {
        /* One for all, or one per rank. */
        if (!*files || *files == world_rank)
            phase->file = value;
        ++*files;
    } else if (!strcmp(key, "hint")) {
        char *end = strchr(value, ' ');
        if (!end || phase->hints == HINTS_MAX)
            die("bad or too many hints");
        *end = 0;
        phase->hint_keys[phase->hints] = value;
        phase->hint_values[phase->hints++] = end + 1;
    } else {
        set_number(phase, key, value);
    }
}

static void parse(struct phase *phase, char *text)
{
    int files = 0;
    char *line = text, *end;
    memset(phase, 0, sizeof *phase);
    while ((end = strchr(line, '\n'))) {
        char *value = strchr(line, ' ');
        *end = 0;
        if (!value)
            die("bad line %s", line);
        *value = 0;
        set(phase, line, value + 1, &files);
        line = end + 1;
    }
    if (!phase->transfer || !phase->block || phase->ranks < 1 || !phase->file)
        die("the phase is not whole");
}

#endif
