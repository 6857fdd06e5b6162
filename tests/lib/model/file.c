/* The contents of two files against two arrays of bytes.
 *
 * All calls of a turn go through one mount. Before the turn goes to another mount, the writes are
 * published as mode `close` asks for: mappings are unmapped or synchronised, files closed or
 * fsynced. A file descriptor that stays open for writing on a mount must see what other mounts have
 * published meanwhile; page caches (read-only opens, mappings) only after an open.
 */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 2
#define SIZE_MAX_BYTES (2u << 20)
#define PAGE 4096

struct file {
    const char *name;
    unsigned char *bytes; /* zeros past `size` */
    size_t size;
    int descriptor[MOUNTS_MAX]; /* open for reading and writing, or -1 */
    int is_fresh[MOUNTS_MAX];   /* opened since the turn came to the mount */
    unsigned char *map;         /* shared mapping on the mount that has the turn */
    size_t map_length;
};

static struct file files[FILES];
static int turn;
static unsigned char *buffer;

static const char *path_of(const struct file *file, int mount) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", mounts[mount], file->name);
    return path;
}

static void open_again(struct file *file) {
    int *descriptor = &file->descriptor[turn];
    file->is_fresh[turn] = 1;
    if (*descriptor >= 0) {
        expect(close(*descriptor), 0, "close");
    }
    int flags = O_RDWR | O_CREAT;
    flags |= one_in(8) && !getenv("NO_DIRECT") ? O_DIRECT : 0;
    flags |= one_in(30) ? O_SYNC : 0;
    if (one_in(40)) {
        flags |= O_TRUNC;
        file->size = 0;
        memset(file->bytes, 0, SIZE_MAX_BYTES);
    }
    begin("%d:%s: open with flags %#o", turn, file->name, flags);
    *descriptor = open(path_of(file, turn), flags, 0666);
    expect(*descriptor, 0, "open");
}

static int descriptor_of(struct file *file) {
    if (file->descriptor[turn] < 0 || one_in(30)) {
        open_again(file);
    }
    return file->descriptor[turn];
}

static int fresh_descriptor_of(struct file *file) {
    if (!file->is_fresh[turn]) {
        open_again(file);
    }
    return descriptor_of(file);
}

static void unmap(struct file *file) {
    if (file->map) {
        begin("%d:%s: munmap", turn, file->name);
        expect(munmap(file->map, file->map_length), 0, "munmap");
        file->map = NULL;
    }
}

/* Gives the turn to a mount. */
static void take_turn(int mount) {
    if (mount == turn) {
        return;
    }
    for (int index = 0; index < FILES; index++) {
        struct file *file = &files[index];
        unmap(file);
        if (file->descriptor[turn] >= 0) {
            if (one_in(2)) {
                begin("%d:%s: close", turn, file->name);
                expect(close(file->descriptor[turn]), 0, "close");
                file->descriptor[turn] = -1;
            } else {
                begin("%d:%s: fsync", turn, file->name);
                expect(fsync(file->descriptor[turn]), 0, "fsync");
            }
        }
        file->is_fresh[mount] = 0;
    }
    turn = mount;
}

/* Returns a length: mostly small, sometimes larger than one fill or one request. */
static size_t some_length(void) {
    switch (below(16)) {
    case 0: return 1 + below(400000);
    case 1: case 2: case 3: return 1 + below(50000);
    case 4: case 5: case 6: return PAGE * (1 + below(4));
    case 7: case 8: case 9: case 10: return 1 + below(5000);
    default: return 1 + below(100);
    }
}

static size_t some_offset(const struct file *file, size_t length) {
    size_t limit = SIZE_MAX_BYTES - length;
    switch (below(4)) {
    case 0: return below(limit + 1);
    case 1: return below(65536 < limit ? 65536 : limit + 1);
    case 2: return file->size < limit ? file->size : limit;
    default: return below((file->size < limit ? file->size : limit) + 1) / 512 * 512;
    }
}

static void compare(const struct file *file, const unsigned char *got, size_t offset, size_t length,
                    const char *what) {
    if (memcmp(got, file->bytes + offset, length) == 0) {
        return;
    }
    size_t first = 0;
    while (got[first] == file->bytes[offset + first]) {
        first++;
    }
    size_t last = length - 1;
    while (got[last] == file->bytes[offset + last]) {
        last--;
    }
    fail("%s through mount %d: %s differs in bytes %zu to %zu (first is %u instead of %u)", what,
         turn, file->name, offset + first, offset + last, got[first],
         file->bytes[offset + first]);
}

static void read_by(struct file *file, int descriptor, size_t offset, size_t length,
                    const char *what) {
    size_t there = offset >= file->size ? 0 : file->size - offset;
    size_t expected = length < there ? length : there;
    ssize_t got = pread(descriptor, buffer, length, offset);
    if (got != (ssize_t)expected) {
        fail("%s of %zu at %zu gave %zd instead of %zu (size %zu)", what, length, offset, got,
             expected, file->size);
    }
    compare(file, buffer, offset, expected, what);
}

static void do_read(struct file *file) {
    size_t length = some_length(), offset = some_offset(file, length);
    begin("%d:%s: pread %zu at %zu", turn, file->name, length, offset);
    read_by(file, descriptor_of(file), offset, length, "pread");
}

static void do_cached_read(struct file *file) {
    descriptor_of(file);
    size_t length = some_length(), offset = some_offset(file, length);
    begin("%d:%s: read-only pread %zu at %zu", turn, file->name, length, offset);
    int descriptor = open(path_of(file, turn), O_RDONLY);
    expect(descriptor, 0, "open read-only");
    read_by(file, descriptor, offset, length, "read-only pread");
    expect(close(descriptor), 0, "close");
}

static void wrote(struct file *file, const unsigned char *from, size_t offset, size_t length) {
    memmove(file->bytes + offset, from, length);
    if (offset + length > file->size) {
        file->size = offset + length;
    }
}

static void fill_buffer(size_t length) {
    uint64_t bits = random_bits();
    for (size_t at = 0; at < length; at++) {
        buffer[at] = (unsigned char)((bits >> (at % 7 * 8)) + at / 251);
    }
}

static void do_write(struct file *file) {
    size_t length = some_length(), offset = some_offset(file, length);
    int descriptor = descriptor_of(file);
    begin("%d:%s: pwrite %zu at %zu", turn, file->name, length, offset);
    fill_buffer(length);
    ssize_t got = pwrite(descriptor, buffer, length, offset);
    if (got != (ssize_t)length) {
        fail("pwrite gave %zd", got);
    }
    wrote(file, buffer, offset, length);
}

static void do_append(struct file *file) {
    descriptor_of(file);
    int descriptor = open(path_of(file, turn), O_WRONLY | O_APPEND);
    expect(descriptor, 0, "open to append");
    for (uint64_t left = 1 + below(3); left > 0; left--) {
        size_t length = some_length();
        if (file->size + length > SIZE_MAX_BYTES) {
            break;
        }
        begin("%d:%s: append %zu at %zu", turn, file->name, length, file->size);
        fill_buffer(length);
        ssize_t got = write(descriptor, buffer, length);
        if (got != (ssize_t)length) {
            fail("append gave %zd", got);
        }
        wrote(file, buffer, file->size, length);
    }
    expect(close(descriptor), 0, "close");
}

static void set_zeros(struct file *file, size_t offset, size_t end) {
    if (offset < end) {
        memset(file->bytes + offset, 0, end - offset);
    }
}

static void do_truncate(struct file *file) {
    int descriptor = descriptor_of(file);
    size_t size = one_in(3) ? below(SIZE_MAX_BYTES) : below(file->size + 1);
    int by_path = one_in(2);
    begin("%d:%s: %s from %zu to %zu", turn, file->name, by_path ? "truncate" : "ftruncate",
          file->size, size);
    expect(by_path ? truncate(path_of(file, turn), size) : ftruncate(descriptor, size), 0,
           "truncate");
    set_zeros(file, size, file->size);
    file->size = size;
}

static void do_fallocate(struct file *file) {
    static const int modes[] = {
        0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
        FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
    };
    int mode = modes[below(5)];
    size_t length = some_length(), offset = some_offset(file, length), end = offset + length;
    int descriptor = descriptor_of(file);
    begin("%d:%s: fallocate %#x %zu at %zu", turn, file->name, mode, length, offset);
    expect(fallocate(descriptor, mode, offset, length), 0, "fallocate");
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) {
        set_zeros(file, offset, end < file->size ? end : file->size);
    }
    if (!(mode & FALLOC_FL_KEEP_SIZE) && end > file->size) {
        file->size = end;
    }
}

static void do_map(struct file *file) {
    if (file->size == 0) {
        return;
    }
    if (file->map && (file->map_length < file->size || one_in(8))) {
        unmap(file);
    }
    if (!file->map) {
        fresh_descriptor_of(file);
        if (file->size == 0) {
            return;
        }
        file->map_length = (file->size + PAGE - 1) / PAGE * PAGE;
        begin("%d:%s: mmap %zu", turn, file->name, file->map_length);
        file->map = mmap(NULL, file->map_length, PROT_READ | PROT_WRITE, MAP_SHARED,
                         file->descriptor[turn], 0);
        if (file->map == MAP_FAILED) {
            fail("mmap");
        }
    }
    size_t offset = below(file->size), length = some_length();
    length = length < file->size - offset ? length : file->size - offset;
    if (one_in(2)) {
        begin("%d:%s: load %zu at %zu", turn, file->name, length, offset);
        compare(file, file->map + offset, offset, length, "load");
        return;
    }
    begin("%d:%s: store %zu at %zu", turn, file->name, length, offset);
    fill_buffer(length);
    memcpy(file->map + offset, buffer, length);
    wrote(file, buffer, offset, length);
    if (one_in(6)) {
        begin("%d:%s: msync", turn, file->name);
        expect(msync(file->map, file->map_length, MS_SYNC), 0, "msync");
    }
}

static void do_copy(struct file *from) {
    struct file *to = &files[below(FILES)];
    size_t length = some_length();
    off_t source = some_offset(from, length), target = some_offset(to, length);
    /* The kernel bounds a copy by the size that it knows, which only an open brings up to date. */
    fresh_descriptor_of(from);
    int out = fresh_descriptor_of(to), in = from->descriptor[turn];
    begin("%d: copy %zu from %s at %zu to %s at %zu", turn, length, from->name, (size_t)source,
          to->name, (size_t)target);
    size_t reach = (size_t)source >= from->size ? 0 : from->size - source;
    reach = length < reach ? length : reach;
    int overlaps = from == to && (size_t)labs(source - target) < reach;
    if (overlaps) {
        expect(copy_file_range(in, &source, out, &target, length, 0), EINVAL, "overlapping copy");
        return;
    }
    while (length > 0) {
        size_t there = (size_t)source >= from->size ? 0 : from->size - source;
        size_t at = source, put = target;
        ssize_t got = copy_file_range(in, &source, out, &target, length, 0);
        if (got < 0 || (size_t)got > there || (got == 0 && there > 0)) {
            fail("copy_file_range gave %zd of %zu", got, there);
        }
        if (got == 0) {
            return;
        }
        wrote(to, from->bytes + at, put, got);
        length -= got;
    }
}

static int is_zero(const struct file *file, size_t start, size_t end) {
    for (size_t at = start; at < end; at++) {
        if (file->bytes[at]) {
            return 0;
        }
    }
    return 1;
}

static void do_seek(struct file *file) {
    int descriptor = descriptor_of(file);
    off_t offset = below(file->size + 10);
    if (file->map) {
        /* The kernel does not write out stores of its own before it asks where data is. */
        expect(msync(file->map, file->map_length, MS_SYNC), 0, "msync");
    }
    begin("%d:%s: seek from %zu", turn, file->name, (size_t)offset);
    off_t data = lseek(descriptor, offset, SEEK_DATA);
    int nothing = data < 0 && errno == ENXIO;
    if (!nothing && (data < offset || (size_t)data >= file->size)) {
        fail("SEEK_DATA gave %ld, size %zu", (long)data, file->size);
    }
    if ((size_t)offset < file->size &&
        !is_zero(file, offset, nothing ? file->size : (size_t)data)) {
        fail("SEEK_DATA gave %ld and skipped data", (long)data);
    }
    off_t hole = lseek(descriptor, offset, SEEK_HOLE);
    if ((size_t)offset >= file->size) {
        expect(hole, ENXIO, "SEEK_HOLE past the end");
    } else if (hole < offset || (size_t)hole > file->size ||
               ((size_t)hole < file->size && file->bytes[hole])) {
        fail("SEEK_HOLE gave %ld, size %zu", (long)hole, file->size);
    }
}

static void do_stat(struct file *file) {
    struct stat found;
    int descriptor = descriptor_of(file);
    begin("%d:%s: stat", turn, file->name);
    expect(one_in(2) ? fstat(descriptor, &found) : stat(path_of(file, turn), &found), 0, "stat");
    if ((size_t)found.st_size != file->size) {
        fail("stat says size %zu instead of %zu", (size_t)found.st_size, file->size);
    }
}

static void do_sync(struct file *file) {
    int descriptor = descriptor_of(file);
    begin("%d:%s: fsync", turn, file->name);
    expect(one_in(2) ? fsync(descriptor) : fdatasync(descriptor), 0, "fsync");
}

/* Compares everything, through every mount. */
static void check_all(void) {
    for (int mount = 0; mount < mount_count; mount++) {
        for (int index = 0; index < FILES; index++) {
            take_turn(mount);
            do_stat(&files[index]);
            begin("%d:%s: check", turn, files[index].name);
            int descriptor = open(path_of(&files[index], mount), O_RDONLY);
            expect(descriptor, 0, "open");
            read_by(&files[index], descriptor, 0, SIZE_MAX_BYTES, "check");
            expect(close(descriptor), 0, "close");
        }
    }
}

void run_file(uint64_t operations) {
    static void (*const kinds[])(struct file *) = {
        do_read,  do_read,      do_cached_read, do_write, do_write, do_write, do_append,
        do_map,   do_map,       do_map,         do_copy,  do_seek,  do_stat,  do_sync,
        do_write, do_fallocate, do_truncate,
    };
    static const char *const names[FILES] = {"a", "b"};
    buffer = malloc(SIZE_MAX_BYTES);
    for (int index = 0; index < FILES; index++) {
        files[index].name = names[index];
        files[index].bytes = calloc(1, SIZE_MAX_BYTES);
        memset(files[index].descriptor, -1, sizeof files[index].descriptor);
    }
    if (!buffer || !files[0].bytes || !files[1].bytes) {
        fail("out of memory");
    }
    for (int index = 0; index < FILES; index++) {
        unlink(path_of(&files[index], turn));
        open_again(&files[index]);
    }
    for (uint64_t done = 0; done < operations; done++) {
        if (one_in(5)) {
            take_turn(below(mount_count));
        }
        kinds[below(sizeof kinds / sizeof *kinds)](&files[below(FILES)]);
        if (one_in(500)) {
            check_all();
        }
    }
    check_all();
    for (int mount = 0; mount < mount_count; mount++) {
        take_turn(mount);
        for (int index = 0; index < FILES; index++) {
            unmap(&files[index]);
            if (files[index].descriptor[mount] >= 0) {
                expect(close(files[index].descriptor[mount]), 0, "close");
                files[index].descriptor[mount] = -1;
            }
        }
    }
}
