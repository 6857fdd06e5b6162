/* A tree of names, attributes and small contents against a model of inodes and directories.
 *
 * Every operation goes through a random mount and must end with the error that the model expects.
 * Files that stay open over other operations, also unlinked ones, show that an inode outlives its
 * names.
 */
#define _GNU_SOURCE
#include "model.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NAMES 8
#define NODES 300
#define HELD 8
#define CONTENT 20000
#define ROOT 0
#define NONE (-1)
#define PATH 4096
#define XATTR "user.model"

struct node {
    mode_t type; /* S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, or 0: not in use */
    mode_t mode;
    uid_t uid;
    gid_t gid;
    nlink_t nlink;
    time_t mtime; /* 0: not known */
    ino_t inode;  /* 0: not seen yet */
    int holders;  /* open descriptors */
    int xattr;    /* length of its value, NONE without one */
    size_t size;
    unsigned char bytes[CONTENT];
    char target[200];
    int entries[NAMES];
    int parent;
};

static struct node nodes[NODES];
static struct { int node, descriptor, mount; } held[HELD];
static const char *const names[NAMES] = {
    "a", "b", "file with blanks", "\xc3\xbc", "e", "deep", "g.txt",
    "a-name-that-is-not-short-but-of-a-length-like-those-that-programs-make-up-themselves",
};

/* A name in a directory. */
struct slot { int directory, name; };

static int *entry_at(struct slot slot) { return &nodes[slot.directory].entries[slot.name]; }

static void append_directory(char *path, int directory) {
    if (directory == ROOT) {
        return;
    }
    int parent = nodes[directory].parent, name = 0;
    while (nodes[parent].entries[name] != directory) {
        name++;
    }
    append_directory(path, parent);
    strcat(path, "/");
    strcat(path, names[name]);
}

static const char *path_of(struct slot slot, int mount) {
    static char paths[2][PATH];
    static int next;
    char *path = paths[next++ % 2];
    snprintf(path, PATH, "%s", mounts[mount]);
    append_directory(path, slot.directory);
    strcat(path, "/");
    return strcat(path, names[slot.name]);
}

static int depth_of(int directory) {
    int depth = 0;
    for (; directory != ROOT; directory = nodes[directory].parent) {
        depth++;
    }
    return depth;
}

static int is_directory(int node) { return node != NONE && nodes[node].type == S_IFDIR; }

static int is_within(int node, int ancestor) {
    while (node != ancestor && node != ROOT) {
        node = nodes[node].parent;
    }
    return node == ancestor;
}

static int is_empty(int directory) {
    for (int name = 0; name < NAMES; name++) {
        if (nodes[directory].entries[name] != NONE) {
            return 0;
        }
    }
    return 1;
}

static struct slot some_slot(void) {
    int directory;
    do {
        directory = below(NODES);
    } while (nodes[directory].type != S_IFDIR || nodes[directory].nlink == 0);
    return (struct slot){directory, below(NAMES)};
}

/* Returns a used slot, if a few tries find one. */
static struct slot used_slot(void) {
    struct slot slot = some_slot();
    for (int tries = 0; tries < 20 && *entry_at(slot) == NONE; tries++) {
        slot = some_slot();
    }
    return slot;
}

static int make_node(mode_t type, mode_t mode, struct slot slot) {
    int index = 0;
    while (nodes[index].type) {
        index++;
    }
    struct node *node = &nodes[index];
    memset(node, 0, sizeof *node);
    node->type = type;
    node->mode = mode;
    node->nlink = type == S_IFDIR ? 2 : 1;
    node->xattr = NONE;
    node->parent = slot.directory;
    memset(node->entries, 0xff, sizeof node->entries);
    *entry_at(slot) = index;
    nodes[slot.directory].nlink += type == S_IFDIR;
    return index;
}

static int is_full(void) {
    int used = 0;
    for (int index = 0; index < NODES; index++) {
        used += nodes[index].type != 0;
    }
    return used >= NODES - 2;
}

static void release_if_dead(int node) {
    if (nodes[node].nlink == 0 && nodes[node].holders == 0) {
        nodes[node].type = 0;
    }
}

/* Removes a name of a node. */
static void drop_name(int node, int directory) {
    if (is_directory(node)) {
        nodes[directory].nlink--;
        nodes[node].nlink = 0;
    } else {
        nodes[node].nlink--;
    }
    release_if_dead(node);
}

static void do_make(int mount) {
    static const mode_t types[] = {S_IFREG, S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFLNK, S_IFIFO};
    struct slot slot = some_slot();
    mode_t type = types[below(7)], mode = below(01000);
    if (is_full() || (type == S_IFDIR && depth_of(slot.directory) > 4)) {
        return;
    }
    int error = *entry_at(slot) == NONE ? 0 : EEXIST;
    const char *path = path_of(slot, mount);
    char target[200];
    snprintf(target, sizeof target, "target %llu/%0*d", (unsigned long long)random_bits(),
             (int)below(100) + 1, 7);
    begin("%d: make %o %s", mount, type | mode, path);
    long result;
    if (type == S_IFREG) {
        result = open(path, O_CREAT | O_EXCL | O_WRONLY, mode);
        if (result >= 0) {
            close(result);
        }
    } else if (type == S_IFLNK) {
        result = symlink(target, path);
        mode = 0777;
    } else {
        result = type == S_IFDIR ? mkdir(path, mode) : mkfifo(path, mode);
    }
    expect(result, error, "make");
    if (!error) {
        strcpy(nodes[make_node(type, mode, slot)].target, target);
    }
}

static void do_remove(int mount) {
    struct slot slot = used_slot();
    int node = *entry_at(slot), by_rmdir = one_in(3), error = 0;
    if (node == NONE) {
        error = ENOENT;
    } else if (by_rmdir) {
        error = !is_directory(node) ? ENOTDIR : is_empty(node) ? 0 : ENOTEMPTY;
    } else if (is_directory(node)) {
        error = EISDIR;
    }
    const char *path = path_of(slot, mount);
    begin("%d: %s %s", mount, by_rmdir ? "rmdir" : "unlink", path);
    expect(by_rmdir ? rmdir(path) : unlink(path), error, "remove");
    if (!error) {
        *entry_at(slot) = NONE;
        drop_name(node, slot.directory);
    }
}

static void do_link(int mount) {
    struct slot from = used_slot(), to = some_slot();
    int node = *entry_at(from);
    int error = node == NONE ? ENOENT
                : *entry_at(to) != NONE ? EEXIST
                : is_directory(node) ? EPERM : 0;
    const char *old = path_of(from, mount), *new = path_of(to, mount);
    begin("%d: link %s to %s", mount, old, new);
    expect(link(old, new), error, "link");
    if (!error) {
        *entry_at(to) = node;
        nodes[node].nlink++;
    }
}

static int rename_error(struct slot from, struct slot to, unsigned flags) {
    int moved = *entry_at(from), present = *entry_at(to);
    if (moved == NONE) {
        return ENOENT;
    }
    if (flags == RENAME_NOREPLACE && present != NONE) {
        return EEXIST;
    }
    if (flags == RENAME_EXCHANGE && present == NONE) {
        return ENOENT;
    }
    if (is_directory(moved) && is_within(to.directory, moved)) {
        return EINVAL;
    }
    if (is_directory(present) && is_within(from.directory, present)) {
        return flags == RENAME_EXCHANGE ? EINVAL : ENOTEMPTY;
    }
    if (present == NONE || present == moved || flags == RENAME_EXCHANGE) {
        return 0;
    }
    if (is_directory(moved) != is_directory(present)) {
        return is_directory(moved) ? ENOTDIR : EISDIR;
    }
    return is_directory(present) && !is_empty(present) ? ENOTEMPTY : 0;
}

static void move(int node, int from, int to) {
    if (is_directory(node)) {
        nodes[from].nlink--;
        nodes[to].nlink++;
        nodes[node].parent = to;
    }
}

static void do_rename(int mount) {
    static const unsigned modes[] = {0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
    struct slot from = used_slot(), to = one_in(2) ? used_slot() : some_slot();
    unsigned flags = modes[below(4)];
    int moved = *entry_at(from), present = *entry_at(to);
    int error = rename_error(from, to, flags);
    const char *old = path_of(from, mount), *new = path_of(to, mount);
    begin("%d: rename %s to %s with flags %u", mount, old, new, flags);
    long result = renameat2(AT_FDCWD, old, AT_FDCWD, new, flags);
    expect(result, error, "rename");
    if (error || moved == present) {
        return;
    }
    *entry_at(to) = moved;
    *entry_at(from) = NONE;
    if (flags == RENAME_EXCHANGE) {
        *entry_at(from) = present;
        move(present, to.directory, from.directory);
    } else if (present != NONE) {
        drop_name(present, to.directory);
    }
    move(moved, from.directory, to.directory);
}

static void do_attributes(int mount) {
    struct slot slot = used_slot();
    int index = *entry_at(slot);
    struct node *node = &nodes[index];
    if (index == NONE) {
        return;
    }
    const char *path = path_of(slot, mount);
    int is_link = node->type == S_IFLNK;
    switch (below(4)) {
    case 0:
        if (!is_link) {
            node->mode = below(01000);
            begin("%d: chmod %o %s", mount, node->mode, path);
            expect(chmod(path, node->mode), 0, "chmod");
        }
        return;
    case 1:
        node->uid = below(70000);
        node->gid = below(70000);
        begin("%d: chown %u:%u %s", mount, node->uid, node->gid, path);
        expect(lchown(path, node->uid, node->gid), 0, "chown");
        return;
    case 2: {
        node->mtime = 1 + below(1u << 31);
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = node->mtime}};
        begin("%d: utimens %ld %s", mount, (long)node->mtime, path);
        expect(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0, "utimens");
        node->mtime = is_directory(index) ? 0 : node->mtime;
        return;
    }
    default:
        if (node->type == S_IFREG || node->type == S_IFDIR) {
            static const char value[3000];
            int length = one_in(3) ? NONE : (int)below(sizeof value);
            int error = length == NONE && node->xattr == NONE ? ENODATA : 0;
            begin("%d: xattr %d %s", mount, length, path);
            expect(length == NONE ? removexattr(path, XATTR)
                                  : setxattr(path, XATTR, value, length, 0), error, "xattr");
            node->xattr = length;
        }
    }
}

/* Writes a random range through a descriptor, or cuts the file. */
static void change(struct node *node, int descriptor) {
    node->mtime = 0;
    if (one_in(4)) {
        size_t size = below(CONTENT);
        expect(ftruncate(descriptor, size), 0, "ftruncate");
        if (size < node->size) {
            memset(node->bytes + size, 0, node->size - size);
        }
        node->size = size;
        return;
    }
    size_t offset = below(CONTENT - 1), length = 1 + below(CONTENT - offset);
    memset(node->bytes + offset, 'a' + below(26), length);
    expect(pwrite(descriptor, node->bytes + offset, length, offset), 0, "pwrite");
    node->size = offset + length > node->size ? offset + length : node->size;
}

static void check_bytes(struct node *node, int descriptor) {
    static unsigned char got[CONTENT + 1];
    ssize_t length = pread(descriptor, got, sizeof got, 0);
    if (length != (ssize_t)node->size || memcmp(got, node->bytes, length)) {
        fail("read gave %zd bytes instead of %zu, or others", length, node->size);
    }
}

static void check_attributes(struct node *node, const struct stat *found) {
    if (!node->inode) {
        node->inode = found->st_ino;
    }
    if (found->st_mode != (node->type | node->mode) || found->st_nlink != node->nlink ||
        found->st_uid != node->uid || found->st_gid != node->gid ||
        found->st_ino != node->inode ||
        (node->type == S_IFREG && (size_t)found->st_size != node->size) ||
        (node->mtime && found->st_mtime != node->mtime)) {
        fail("stat says mode %o links %lu owner %u:%u size %zu mtime %ld inode %lu; the model has "
             "mode %o links %lu owner %u:%u size %zu mtime %ld inode %lu",
             found->st_mode, (unsigned long)found->st_nlink, found->st_uid, found->st_gid,
             (size_t)found->st_size, (long)found->st_mtime, (unsigned long)found->st_ino,
             node->type | node->mode, (unsigned long)node->nlink, node->uid, node->gid, node->size,
             (long)node->mtime, (unsigned long)node->inode);
    }
}

static void check_name(struct slot slot, int mount) {
    struct stat found;
    const char *path = path_of(slot, mount);
    struct node *node = &nodes[*entry_at(slot) == NONE ? ROOT : *entry_at(slot)];
    begin("%d: check %s", mount, path);
    expect(lstat(path, &found), *entry_at(slot) == NONE ? ENOENT : 0, "lstat");
    if (node == &nodes[ROOT]) {
        return;
    }
    check_attributes(node, &found);
    if (node->type == S_IFLNK) {
        char target[256] = "";
        expect(readlink(path, target, sizeof target - 1), 0, "readlink");
        if (strcmp(target, node->target)) {
            fail("readlink gave %s instead of %s", target, node->target);
        }
    } else if (node->type == S_IFREG) {
        int descriptor = open(path, O_RDONLY);
        expect(descriptor, 0, "open");
        check_bytes(node, descriptor);
        close(descriptor);
    }
    if (node->type == S_IFREG || node->type == S_IFDIR) {
        ssize_t length = getxattr(path, XATTR, NULL, 0);
        if (length != node->xattr) {
            fail("xattr has length %zd instead of %d", length, node->xattr);
        }
    }
}

static void do_contents(int mount) {
    struct slot slot = used_slot();
    if (*entry_at(slot) == NONE || nodes[*entry_at(slot)].type != S_IFREG) {
        return;
    }
    const char *path = path_of(slot, mount);
    begin("%d: change the contents of %s", mount, path);
    int descriptor = open(path, O_WRONLY);
    expect(descriptor, 0, "open");
    change(&nodes[*entry_at(slot)], descriptor);
    expect(close(descriptor), 0, "close");
}

static void do_stat(int mount) { check_name(one_in(4) ? some_slot() : used_slot(), mount); }

/* Opens a file to keep, or uses or closes one that is kept. */
static void do_held(int mount) {
    int index = below(HELD);
    if (!held[index].descriptor) {
        struct slot slot = used_slot();
        int node = *entry_at(slot);
        if (node == NONE || nodes[node].type != S_IFREG) {
            return;
        }
        begin("%d: keep %s open as %d", mount, path_of(slot, mount), index);
        int descriptor = open(path_of(slot, mount), O_RDWR);
        expect(descriptor, 0, "open");
        nodes[node].holders++;
        held[index].node = node;
        held[index].descriptor = descriptor;
        held[index].mount = mount;
        return;
    }
    struct node *node = &nodes[held[index].node];
    struct stat found;
    begin("%d: use open file %d with %d links", held[index].mount, index, (int)node->nlink);
    expect(fstat(held[index].descriptor, &found), 0, "fstat");
    check_attributes(node, &found);
    check_bytes(node, held[index].descriptor);
    if (one_in(2)) {
        change(node, held[index].descriptor);
        expect(fsync(held[index].descriptor), 0, "fsync");
    }
    if (one_in(3)) {
        begin("%d: close open file %d", held[index].mount, index);
        expect(close(held[index].descriptor), 0, "close");
        held[index].descriptor = 0;
        node->holders--;
        release_if_dead(held[index].node);
    }
}

static void check_directory(int directory, int mount) {
    int seen[NAMES] = {0};
    char path[PATH];
    snprintf(path, sizeof path, "%s", mounts[mount]);
    append_directory(path, directory);
    begin("%d: list %s", mount, path);
    DIR *stream = opendir(path);
    expect(stream ? 0 : -1, 0, "opendir");
    for (struct dirent *entry; (entry = readdir(stream));) {
        int name = 0;
        while (name < NAMES && strcmp(names[name], entry->d_name)) {
            name++;
        }
        if (name < NAMES) {
            seen[name]++;
        } else if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
            fail("%s is listed", entry->d_name);
        }
    }
    closedir(stream);
    for (int name = 0; name < NAMES; name++) {
        if (seen[name] != (nodes[directory].entries[name] != NONE)) {
            fail("%s is listed %d times", names[name], seen[name]);
        }
        check_name((struct slot){directory, name}, mount);
    }
}

static void do_list(int mount) { check_directory(some_slot().directory, mount); }

void run_tree(uint64_t operations) {
    static void (*const kinds[])(int) = {
        do_make, do_make, do_make, do_remove, do_link, do_rename, do_rename, do_attributes,
        do_attributes, do_contents, do_contents, do_stat, do_stat, do_held, do_held,
    };
    umask(0);
    nodes[ROOT] = (struct node){.type = S_IFDIR, .nlink = 2, .xattr = NONE};
    memset(nodes[ROOT].entries, 0xff, sizeof nodes[ROOT].entries);
    for (uint64_t done = 0; done < operations; done++) {
        kinds[below(sizeof kinds / sizeof *kinds)](below(mount_count));
        if (one_in(60)) {
            do_list(below(mount_count));
        }
    }
    for (int mount = 0; mount < mount_count; mount++) {
        for (int index = 0; index < NODES; index++) {
            if (nodes[index].type == S_IFDIR && nodes[index].nlink) {
                check_directory(index, mount);
            }
        }
    }
}
