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
#include "data.h"
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#define PINGS 16

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

/*
 * Which hints an open file really has, told by an open of its own outside of the clock. Open MPI's
 * MPI_File_get_info gives back what it was given, whether the I/O component knows it or not; so
 * ROMIO is asked to print its own ("key = ... value = ..."). What does not print is not ROMIO.
 */
static void tell_hints(const struct phase *phase)
{
    struct file file = {-1, MPI_FILE_NULL, MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
    struct phase again = *phase;
    int index, keys = 0, is_set;
    char key[MPI_MAX_INFO_KEY + 1], value[MPI_MAX_INFO_VAL + 1];
    MPI_Info info;
    again.has_view = again.is_new = 0;
    again.preallocate = 0;
    if (phase->has_own_files && world_rank)
        return;
    setenv("ROMIO_PRINT_HINTS", "1", 1);
    open_file(&again, &file);
    unsetenv("ROMIO_PRINT_HINTS");
    check(MPI_File_get_info(file.mpi, &info), "cannot get hints of", phase->file);
    check(MPI_Info_get_nkeys(info, &keys), "cannot get hints of", phase->file);
    for (index = 0; index < keys && world_rank == 0; index++) {
        MPI_Info_get_nthkey(info, index, key);
        MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &is_set);
        if (is_set)
            printf("hint %s %s\n", key, value);
    }
    MPI_Info_free(&info);
    close_file(&again, &file);
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
    /* What is read goes to pages that are there: getting them is not the storage's time. */
    if (phase->access == WRITE)
        fill(phase, buffer, 0, 1);
    else
        memset(buffer, 0xff, phase->transfer);
    MPI_Barrier(group);
    answer->t[0] = now();
    open_file(phase, &file);
    answer->t[1] = now();
    barrier_if(phase->has_barriers);
    answer->t[2] = now();
    transfers(phase, &file, buffer, offsets, per, answer);
    answer->t[3] = now();
    barrier_if(phase->has_barriers);
    answer->t[4] = now();
    close_file(phase, &file);
    answer->t[5] = now();
    MPI_Barrier(group);
    if (phase->wants_info && phase->is_mpiio)
        tell_hints(phase);
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

/*
 * A number of rank 0's, for which the others wait asleep. MPI_Bcast would keep a CPU of each busy
 * while the conductor prepares a phase; a scheduler that is fair gives such a rank less time afterwards,
 * inside the clock.
 */
static void await_number(uint64_t *number)
{
    const struct timespec pause = {0, 200000};
    MPI_Request request;
    int is_there = 0;
    MPI_Ibcast(number, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD, &request);
    for (;;) {
        MPI_Test(&request, &is_there, MPI_STATUS_IGNORE);
        if (is_there)
            return;
        nanosleep(&pause, NULL);
    }
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
    await_number(&length);
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
