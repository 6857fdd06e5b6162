/*
 * One rank of an IOR test under MPI. Built at run time by the mpicc of the MPI that is measured, so
 * that what is measured is that MPI and no other.
 *
 * Rank 0 reads phases from standard input, as lines of "key value" that end with "go", and answers
 * on standard output with what each rank did. Scripts, repetitions, orders of tasks, removal of
 * files and output are the conductor's (src/engine/ior), which wrote the lines; the words of the
 * pattern and the order of offsets are the same as in pattern.rs and order.rs there.
 *
 * Whatever fails ends all ranks by MPI_Abort: a collective call cannot go on without one of them.
 */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ALIGNMENT 4096
#define WORDS_PER_TAG 512
#define PINGS 16
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

static int world_rank;
static MPI_Comm group = MPI_COMM_NULL;
static double to_rank_0; /* What has to be added to this node's clock. */

static void die(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "ior: rank %d: %s\n", world_rank, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void check(int code, const char *what, const char *file)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    die("%s %s: %s", what, file, text);
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, bytes ? bytes : ALIGNMENT))
        die("cannot allocate %zu bytes", bytes);
    return memory;
}

static double local_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static double now(void) { return local_now() + to_rank_0; }

/* Other nodes have other clocks: the quickest of some pings tells the difference best. */
static void meet_clocks(MPI_Comm node)
{
    int size, other, on_node_0 = 0, mine = world_rank == 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&mine, &on_node_0, 1, MPI_INT, MPI_MAX, node);
    for (other = 1; other < size; other++) {
        int ping, same = on_node_0;
        double best = 1e9, there;
        MPI_Bcast(&same, 1, MPI_INT, other, MPI_COMM_WORLD);
        if (same)
            continue;
        for (ping = 0; ping < PINGS; ping++) {
            if (world_rank == other) {
                double before = local_now(), after;
                MPI_Send(&before, 1, MPI_DOUBLE, 0, 1, MPI_COMM_WORLD);
                MPI_Recv(&there, 1, MPI_DOUBLE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                after = local_now();
                if (after - before < best) {
                    best = after - before;
                    to_rank_0 = there - (before + after) / 2;
                }
            } else if (world_rank == 0) {
                MPI_Recv(&there, 1, MPI_DOUBLE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                there = local_now();
                MPI_Send(&there, 1, MPI_DOUBLE, other, 1, MPI_COMM_WORLD);
            }
        }
    }
}

static void hello(void)
{
    MPI_Comm node;
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int size, length = 0, node_rank, on_node_0 = 0, first, nodes = 0, is_block = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &node_rank);
    MPI_Comm_size(node, &on_node_0);
    first = node_rank == 0;
    MPI_Reduce(&first, &nodes, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    /* By slots if rank 1 is where rank 0 is. */
    is_block = world_rank == 1 && node_rank == 1;
    if (world_rank < 2)
        MPI_Reduce(world_rank ? &is_block : MPI_IN_PLACE, &is_block, 1, MPI_INT, MPI_MAX, 0,
                   MPI_COMM_WORLD);
    else
        MPI_Reduce(&is_block, NULL, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    meet_clocks(node);
    MPI_Comm_free(&node);
    if (world_rank)
        return;
    MPI_Get_library_version(library, &length);
    library[strcspn(library, "\n")] = 0;
    printf("library %s\n", library);
    printf("world %d %d %d %d\n", size, nodes, on_node_0, size == 1 || is_block);
    fflush(stdout);
}

static uint64_t mixed(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t word(const struct phase *phase, uint64_t offset, uint64_t index)
{
    uint64_t part = (uint64_t)phase->part, tag = index % WORDS_PER_TAG == 0;
    switch (phase->pattern) {
    case OLD:
        return index % 2 ? 8 * index : part << 32 | (uint32_t)phase->stamp;
    case OLD_OFFSET:
        return index % 2 ? offset + 8 * index : part << 32 | (uint32_t)phase->stamp;
    case NEW_OFFSET:
        if (tag)
            return (uint32_t)((uint32_t)offset * (uint32_t)(1 + index / WORDS_PER_TAG)) | part << 32;
        return part << 32 | (phase->stamp + index);
    case NEW:
        return part << 32 | (phase->stamp + index);
    case RANDOM:
        return mixed(mixed(phase->stamp ^ part << 32 ^ offset << 8) + index);
    case INCOMPRESSIBLE:
        if (!tag)
            return mixed(mixed(phase->stamp ^ part << 32) + index);
        break;
    case OWN:
        if (!tag)
            return (8 * index) ^ part << 48 ^ 0x6921747375676d75u;
    }
    return (offset + 8 * index) ^ part << 48 ^ 0x7473756d75676921u;
}

/* Words that follow from the offset, so that data in the wrong place is seen, are set for each
 * transfer: one in 4 KiB, which costs next to nothing. */
static uint64_t stride(const struct phase *phase)
{
    switch (phase->pattern) {
    case OLD:
    case NEW:
        return 0;
    case OLD_OFFSET:
    case RANDOM:
        return 1;
    default:
        return WORDS_PER_TAG;
    }
}

static void fill(const struct phase *phase, uint64_t *buffer, uint64_t offset, uint64_t step)
{
    uint64_t index;
    for (index = 0; step && index < phase->transfer / 8; index += step)
        buffer[index] = word(phase, offset, index);
}

static void compare(const struct phase *phase, const uint64_t *buffer, uint64_t offset,
                    struct answer *answer)
{
    uint64_t index;
    for (index = 0; index < phase->transfer / 8; index++)
        if (buffer[index] != word(phase, offset, index) && answer->errors++ == 0)
            answer->wrong_at = offset + 8 * index;
}

/* Offsets of a part in random order, as IOR shuffles them, by the C library's generator. */
static uint64_t *shuffled(const struct phase *phase, uint64_t *count)
{
    uint64_t size = phase->block, transfers, index, kept = 0, *offsets;
    unsigned seed = phase->seed;
    if (phase->order == RANDOM_IN_FILE)
        size *= phase->segments;
    if (!phase->has_own_files)
        size *= phase->ranks;
    else if (phase->order == RANDOM_IN_BLOCK)
        seed += phase->part;
    transfers = size / phase->transfer;
    offsets = allocate(transfers * sizeof *offsets);
    srandom(seed);
    for (index = 0; index < transfers; index++)
        if (phase->has_own_files || (int)(random() % phase->ranks) == phase->part)
            offsets[kept++] = index * phase->transfer;
    for (index = 0; index < kept; index++) {
        uint64_t other = random() % kept, value = offsets[other];
        offsets[other] = offsets[index];
        offsets[index] = value;
    }
    *count = kept;
    return offsets;
}

struct file {
    int posix;
    MPI_File mpi;
    MPI_Datatype transfer, view;
};

static void set_view(const struct phase *phase, struct file *file)
{
    MPI_Datatype block;
    MPI_Offset start = phase->has_own_files ? 0 : (MPI_Offset)(phase->part * phase->block);
    MPI_Aint extent = phase->has_own_files ? phase->block : phase->block * phase->ranks;
    check(MPI_Type_contiguous((int)phase->transfer, MPI_BYTE, &file->transfer), "type for",
          phase->file);
    check(MPI_Type_contiguous((int)(phase->block / phase->transfer), file->transfer, &block),
          "type for", phase->file);
    check(MPI_Type_create_resized(block, 0, extent, &file->view), "type for", phase->file);
    check(MPI_Type_commit(&file->transfer), "type for", phase->file);
    check(MPI_Type_commit(&file->view), "type for", phase->file);
    MPI_Type_free(&block);
    check(MPI_File_set_view(file->mpi, start, file->transfer, file->view, "native", MPI_INFO_NULL),
          "cannot set the view of", phase->file);
}

static void open_file(const struct phase *phase, struct file *file)
{
    int index, mode, flags;
    MPI_Info info = MPI_INFO_NULL;
    if (!phase->is_mpiio) {
        flags = phase->access == WRITE ? O_RDWR | O_CREAT : O_RDONLY;
        file->posix = open(phase->file, flags | (phase->is_direct ? O_DIRECT : 0), 0664);
        if (file->posix < 0)
            die("cannot open %s: %s", phase->file, strerror(errno));
        return;
    }
    if (phase->hints) {
        check(MPI_Info_create(&info), "hints for", phase->file);
        for (index = 0; index < phase->hints; index++)
            check(MPI_Info_set(info, phase->hint_keys[index], phase->hint_values[index]),
                  "hints for", phase->file);
    }
    mode = MPI_MODE_RDONLY;
    if (phase->access == WRITE)
        mode = MPI_MODE_CREATE | (phase->is_rw ? MPI_MODE_RDWR : MPI_MODE_WRONLY);
    check(MPI_File_open(phase->has_own_files ? MPI_COMM_SELF : group, phase->file,
                        mode | MPI_MODE_UNIQUE_OPEN, info, &file->mpi),
          "cannot open", phase->file);
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    if (phase->access == WRITE && phase->is_new)
        check(MPI_File_set_size(file->mpi, 0), "cannot truncate", phase->file);
    if (phase->access == WRITE && phase->preallocate)
        check(MPI_File_preallocate(file->mpi, (MPI_Offset)phase->preallocate),
              "cannot preallocate", phase->file);
    if (phase->has_view)
        set_view(phase, file);
}

static void tell_hints(const struct phase *phase, const struct file *file)
{
    int index, keys = 0, is_set;
    char key[MPI_MAX_INFO_KEY + 1], value[MPI_MAX_INFO_VAL + 1];
    MPI_Info info;
    check(MPI_File_get_info(file->mpi, &info), "cannot get hints of", phase->file);
    check(MPI_Info_get_nkeys(info, &keys), "cannot get hints of", phase->file);
    for (index = 0; index < keys; index++) {
        MPI_Info_get_nthkey(info, index, key);
        MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &is_set);
        if (is_set)
            printf("hint %s %s\n", key, value);
    }
    MPI_Info_free(&info);
}

static void close_file(const struct phase *phase, struct file *file)
{
    if (!phase->is_mpiio) {
        if (close(file->posix))
            die("cannot close %s: %s", phase->file, strerror(errno));
        return;
    }
    check(MPI_File_close(&file->mpi), "cannot close", phase->file);
    if (phase->has_view) {
        MPI_Type_free(&file->view);
        MPI_Type_free(&file->transfer);
    }
}

static void flush_file(const struct phase *phase, struct file *file)
{
    if (phase->is_mpiio)
        check(MPI_File_sync(file->mpi), "cannot flush", phase->file);
    else if (fsync(file->posix))
        die("cannot flush %s: %s", phase->file, strerror(errno));
}

static void move_posix(const struct phase *phase, struct file *file, char *buffer, uint64_t offset)
{
    uint64_t done = 0;
    while (done < phase->transfer) {
        uint64_t left = phase->transfer - done;
        ssize_t moved = phase->access == WRITE
                            ? pwrite(file->posix, buffer + done, left, (off_t)(offset + done))
                            : pread(file->posix, buffer + done, left, (off_t)(offset + done));
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            die("cannot %s %s at %llu: %s", phase->access == WRITE ? "write" : "read", phase->file,
                (unsigned long long)(offset + done), moved ? strerror(errno) : "end of file");
        done += (uint64_t)moved;
        if (phase->is_single_attempt && done < phase->transfer)
            die("%s at %llu: only %llu bytes at once", phase->file, (unsigned long long)offset,
                (unsigned long long)done);
    }
}

static void move_mpiio(const struct phase *phase, struct file *file, char *buffer, uint64_t offset)
{
    int is_write = phase->access == WRITE, bytes = (int)phase->transfer, count = 0, code;
    MPI_Offset at = (MPI_Offset)offset;
    MPI_Status status;
    if (phase->has_view) {
        uint64_t span = phase->has_own_files ? phase->block : phase->block * phase->ranks;
        uint64_t within = offset % span - (phase->has_own_files ? 0 : phase->part * phase->block);
        uint64_t per_block = phase->block / phase->transfer;
        at = (MPI_Offset)(offset / span * per_block + within / phase->transfer);
        check(MPI_File_seek(file->mpi, at, MPI_SEEK_SET), "cannot seek in", phase->file);
        if (is_write)
            code = (phase->is_collective ? MPI_File_write_all : MPI_File_write)(
                file->mpi, buffer, bytes, MPI_BYTE, &status);
        else
            code = (phase->is_collective ? MPI_File_read_all : MPI_File_read)(
                file->mpi, buffer, bytes, MPI_BYTE, &status);
    } else if (is_write) {
        code = (phase->is_collective ? MPI_File_write_at_all : MPI_File_write_at)(
            file->mpi, at, buffer, bytes, MPI_BYTE, &status);
    } else {
        code = (phase->is_collective ? MPI_File_read_at_all : MPI_File_read_at)(
            file->mpi, at, buffer, bytes, MPI_BYTE, &status);
    }
    check(code, is_write ? "cannot write" : "cannot read", phase->file);
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count != bytes)
        die("%s at %llu: %d of %d bytes", phase->file, (unsigned long long)offset, count, bytes);
}

static void move(const struct phase *phase, struct file *file, uint64_t *buffer, uint64_t offset,
                 struct answer *answer)
{
    if (phase->access == WRITE)
        fill(phase, buffer, offset, stride(phase));
    else if (phase->access == CHECK)
        buffer[0] = ~buffer[0];
    (phase->is_mpiio ? move_mpiio : move_posix)(phase, file, (char *)buffer, offset);
    if (phase->access == WRITE && phase->has_fsync_per_write)
        flush_file(phase, file);
    if (phase->access == CHECK)
        compare(phase, buffer, offset, answer);
    if (phase->delay_us) {
        struct timespec pause = {(time_t)(phase->delay_us / 1000000),
                                 (long)(phase->delay_us % 1000000) * 1000};
        nanosleep(&pause, NULL);
    }
    answer->bytes += phase->transfer;
    answer->calls++;
}

/* Call number `index` of a part, of `per` calls per segment. */
static uint64_t offset_of(const struct phase *phase, const uint64_t *offsets, uint64_t per,
                          uint64_t index)
{
    uint64_t segment = index / per, within = index % per;
    uint64_t span = phase->has_own_files ? phase->block : phase->block * phase->ranks;
    if (phase->order == RANDOM_IN_FILE)
        return offsets[within];
    if (offsets)
        return segment * span + offsets[within];
    return segment * span + (phase->has_own_files ? 0 : phase->part * phase->block) +
           within * phase->transfer;
}

static void transfers(const struct phase *phase, struct file *file, uint64_t *buffer,
                      uint64_t *offsets, uint64_t per, struct answer *answer)
{
    uint64_t all = phase->order == RANDOM_IN_FILE ? per : per * phase->segments, index;
    double begun = local_now();
    int is_over = 0;
    do {
        for (index = 0; index < all && !is_over; index++) {
            move(phase, file, buffer, offset_of(phase, offsets, per, index), answer);
            is_over = (phase->deadline > 0 && local_now() - begun > phase->deadline) ||
                      (phase->cap && answer->calls == phase->cap);
            /* All or none may leave a collective loop: rank 0 decides. */
            if (phase->is_mpiio && phase->is_collective && phase->deadline > 0)
                MPI_Bcast(&is_over, 1, MPI_INT, 0, group);
        }
    } while (all && !is_over && local_now() - begun < phase->duration_min);
    if (phase->wears_out) {
        uint64_t most = 0;
        MPI_Allreduce(&answer->calls, &most, 1, MPI_UINT64_T, MPI_MAX, group);
        while (all && answer->calls < most)
            move(phase, file, buffer, offset_of(phase, offsets, per, answer->calls % all), answer);
    }
    if (phase->access == WRITE && phase->has_fsync)
        flush_file(phase, file);
}

static void barrier_if(int wanted)
{
    if (wanted)
        MPI_Barrier(group);
}

static void run(const struct phase *phase, struct answer *answer)
{
    struct file file = {-1, MPI_FILE_NULL, MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
    uint64_t per = phase->block / phase->transfer, *offsets = NULL;
    uint64_t *buffer = allocate(phase->transfer);
    if (phase->order != SEQUENTIAL)
        offsets = shuffled(phase, &per);
    if (phase->access == WRITE)
        fill(phase, buffer, 0, 1);
    MPI_Barrier(group);
    answer->t[0] = now();
    open_file(phase, &file);
    answer->t[1] = now();
    barrier_if(phase->has_barriers);
    answer->t[2] = now();
    transfers(phase, &file, buffer, offsets, per, answer);
    answer->t[3] = now();
    barrier_if(phase->has_barriers);
    if (phase->wants_info && phase->is_mpiio && world_rank == 0)
        tell_hints(phase, &file);
    answer->t[4] = now();
    close_file(phase, &file);
    answer->t[5] = now();
    MPI_Barrier(group);
    free(offsets);
    free(buffer);
}

/* Memory that is kept in use, so that less is left for the page cache. */
static void hog(uint64_t bytes)
{
    static char *memory;
    static uint64_t held;
    if (bytes == held)
        return;
    free(memory);
    memory = NULL;
    held = bytes;
    if (bytes) {
        memory = allocate(bytes);
        memset(memory, 1, bytes);
    }
}

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
        /* One for all, or one per part: parts come before files. */
        if ((*files)++ == (phase->has_own_files ? phase->part : 0))
            phase->file = value;
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

/* The lines of a phase, on all ranks; NULL at the end. */
static char *next_phase(void)
{
    char *text = NULL, *line = NULL;
    size_t room = 0;
    uint64_t length = 0;
    ssize_t got;
    if (world_rank == 0) {
        int is_whole = 0;
        while (!is_whole && (got = getline(&line, &room, stdin)) > 0) {
            is_whole = !strcmp(line, "go\n");
            if (is_whole)
                break;
            text = realloc(text, length + (size_t)got + 1);
            if (!text)
                die("cannot hold a phase");
            memcpy(text + length, line, (size_t)got + 1);
            length += (uint64_t)got;
        }
        free(line);
        if (!is_whole)
            length = 0;
    }
    MPI_Bcast(&length, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (length == 0) {
        free(text);
        return NULL;
    }
    if (world_rank)
        text = allocate(length + 1);
    MPI_Bcast(text, (int)length + 1, MPI_CHAR, 0, MPI_COMM_WORLD);
    return text;
}

static void report(const struct phase *phase, const struct answer *mine)
{
    int rank, index;
    struct answer *all = allocate((size_t)phase->ranks * sizeof *all);
    MPI_Gather((void *)mine, (int)sizeof *mine, MPI_BYTE, all, (int)sizeof *mine, MPI_BYTE, 0,
               group);
    for (rank = 0; world_rank == 0 && rank < phase->ranks; rank++) {
        printf("rank");
        for (index = 0; index < 6; index++)
            printf(" %.9f", all[rank].t[index]);
        printf(" %llu %llu %llu %llu\n", (unsigned long long)all[rank].bytes,
               (unsigned long long)all[rank].calls, (unsigned long long)all[rank].errors,
               (unsigned long long)all[rank].wrong_at);
    }
    if (world_rank == 0) {
        printf("done\n");
        fflush(stdout);
    }
    free(all);
}

int main(int argc, char **argv)
{
    char *text;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    hello();
    while ((text = next_phase())) {
        struct phase phase;
        struct answer answer;
        int size;
        memset(&answer, 0, sizeof answer);
        parse(&phase, text);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        if (phase.ranks > size)
            die("%d ranks are asked for, %d are there", phase.ranks, size);
        MPI_Comm_split(MPI_COMM_WORLD, world_rank < phase.ranks, world_rank, &group);
        if (world_rank < phase.ranks) {
            hog(phase.memory);
            run(&phase, &answer);
            report(&phase, &answer);
        }
        MPI_Comm_free(&group);
        free(text);
    }
    MPI_Finalize();
    return 0;
}
