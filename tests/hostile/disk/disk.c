/* A disk that fails and is recorded: loaded into a process with LD_PRELOAD. Linux, glibc.

   RHYMED_DISK_UNDER   only files below these folders: absolute paths without links, between them colons
   RHYMED_DISK_LOG     append a record of each change and of each flush, see record.py
   RHYMED_DISK_FAULTS  a file with a `struct faults`; others change it while we run

   A change is recorded after it happened and a flush before and after it, so what is recorded as flushed was flushed.
   Writes through shared mappings are not seen; LMDB makes none to its data. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
    uint32_t kind, pid;
    uint64_t inode, token; /* token: of a flush; of a write: 1 if it is durable by itself */
    int64_t at;            /* offset, or size */
    uint32_t path_bytes, data_bytes;
};

enum { WRITE_EIO, WRITE_ENOSPC, WRITE_SHORT, FLUSH_EIO, SPACE_ENOSPC, NAME_EIO, NAME_ENOSPC, KINDS };

struct faults {
    uint32_t per_million, seed;
    uint32_t counts[KINDS];
    char only[128]; /* a part of the path; empty: all */
};

static char under[2 * PATH_MAX];
static int log_fd = -1;
static struct faults *faults;
static uint64_t flushes, draws;

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("RHYMED_DISK_UNDER"), *log = getenv("RHYMED_DISK_LOG");
    const char *control = getenv("RHYMED_DISK_FAULTS");
    if (!folder) return;
    snprintf(under, sizeof under, "%s", folder);
    if (log) {
        int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 800);
        syscall(SYS_close, fd);
    }
    if (control) {
        int fd = syscall(SYS_openat, AT_FDCWD, control, O_RDWR | O_CLOEXEC, 0);
        void *at = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        faults = at == MAP_FAILED ? NULL : at;
        syscall(SYS_close, fd);
    }
}

static int is_ours(const char *path) {
    for (const char *folder = under; *folder;) {
        size_t bytes = strcspn(folder, ":");
        if (!strncmp(path, folder, bytes) && (path[bytes] == '/' || path[bytes] == '-' || !path[bytes])) return 1;
        folder += bytes + (folder[bytes] == ':');
    }
    return 0;
}

static int path_of(int fd, char *path) {
    char link[64];
    if (!*under || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int saved = errno;
    ssize_t count = readlink(link, path, PATH_MAX - 1);
    errno = saved;
    if (count <= 0) return 0;
    path[count] = 0;
    return is_ours(path);
}

static int path_at(int folder, const char *name, char *path) {
    char start[PATH_MAX] = "";
    if (!*under || !name) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        if (folder == AT_FDCWD ? !getcwd(start, sizeof start) : !path_of(folder, start)) return 0;
        if (strlen(start) + strlen(name) + 2 > PATH_MAX) return 0;
        strcat(strcat(strcpy(path, start), "/"), name);
    }
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') path[--end] = 0;
    return is_ours(path);
}

static void put(uint32_t kind, uint64_t inode, uint64_t token, int64_t at, const char *path, const struct iovec *data,
                int count, size_t bytes) {
    if (log_fd < 0) return;
    struct record head = {kind, getpid(), inode, token, at, strlen(path), bytes};
    struct iovec all[IOV_MAX];
    all[0] = (struct iovec){&head, sizeof head};
    all[1] = (struct iovec){(void *)path, head.path_bytes};
    int parts = 2;
    for (int i = 0; i < count && bytes && parts < IOV_MAX; i++) {
        size_t size = data[i].iov_len < bytes ? data[i].iov_len : bytes;
        all[parts++] = (struct iovec){data[i].iov_base, size};
        bytes -= size;
    }
    int saved = errno;
    if (syscall(SYS_writev, log_fd, all, parts) < (ssize_t)sizeof head || bytes) abort();
    errno = saved;
}

static void put_name(uint32_t kind, const char *path, const char *other) {
    struct stat at;
    int saved = errno;
    uint64_t inode = lstat(kind == 'R' || kind == 'L' ? other : path, &at) ? 0 : at.st_ino;
    errno = saved;
    struct iovec data = {(void *)other, strlen(other)};
    put(kind, inode, 0, 0, path, &data, 1, data.iov_len);
}

static uint64_t inode_of(int fd) {
    struct stat at;
    return fstat(fd, &at) ? 0 : at.st_ino;
}

/* Whether to fail now; *kind is one of `kinds`, which end with -1. */
static int fails(const char *path, const int *kinds, int *kind) {
    if (!faults || !faults->per_million || (faults->only[0] && !strstr(path, faults->only))) return 0;
    uint64_t x = __atomic_add_fetch(&draws, 1, __ATOMIC_RELAXED) + ((uint64_t)faults->seed << 40) + ((uint64_t)getpid() << 20);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL; /* splitmix64 */
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
    if (x % 1000000 >= faults->per_million) return 0;
    int count = 0;
    while (kinds[count] >= 0) count++;
    *kind = kinds[(x >> 32) % count];
    __atomic_add_fetch(&faults->counts[*kind], 1, __ATOMIC_RELAXED);
    errno = *kind == WRITE_ENOSPC || *kind == SPACE_ENOSPC || *kind == NAME_ENOSPC ? ENOSPC : EIO;
    return 1;
}

static const int WRITES[] = {WRITE_EIO, WRITE_ENOSPC, WRITE_SHORT, -1}, FLUSHES[] = {FLUSH_EIO, -1};
static const int SPACES[] = {SPACE_ENOSPC, -1}, NAMES[] = {NAME_EIO, NAME_ENOSPC, -1};


/* Of a write of `count` parts: 0, or the number of bytes that is left of it; -1: it fails. */
static ssize_t limit(const char *path, const struct iovec *data, int count) {
    int kind;
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += data[i].iov_len;
    if (!fails(path, WRITES, &kind)) return 0;
    return kind != WRITE_SHORT || bytes < 2 ? -1 : (ssize_t)(bytes / 2);
}

static ssize_t written(int fd, const char *path, const struct iovec *data, int count, off_t at, ssize_t bytes) {
    if (bytes > 0) {
        if (at < 0) at = lseek(fd, 0, SEEK_CUR) - bytes;
        put('W', inode_of(fd), !!(fcntl(fd, F_GETFL) & O_DSYNC), at, path, data, count, bytes);
    }
    return bytes;
}

/* A write at `at`, or where the file is if that is negative. */
static ssize_t write_parts(int fd, const struct iovec *data, int count, off_t at) {
    char path[PATH_MAX];
    int ours = path_of(fd, path);
    ssize_t most = ours ? limit(path, data, count) : 0;
    if (most < 0) return -1;
    struct iovec part = {data[0].iov_base, data[0].iov_len < (size_t)most ? data[0].iov_len : (size_t)most};
    if (most) data = &part, count = 1;
    ssize_t bytes = at < 0 ? syscall(SYS_writev, fd, data, count) : syscall(SYS_pwritev, fd, data, count, at, 0);
    return ours ? written(fd, path, data, count, at, bytes) : bytes;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    struct iovec part = {(void *)data, bytes};
    char path[PATH_MAX];
    if (!path_of(fd, path)) return syscall(SYS_write, fd, data, bytes);
    return write_parts(fd, &part, 1, -1);
}
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    struct iovec part = {(void *)data, bytes};
    return write_parts(fd, &part, 1, at);
}
ssize_t writev(int fd, const struct iovec *data, int count) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return syscall(SYS_writev, fd, data, count);
    return write_parts(fd, data, count, -1);
}
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t at) { return write_parts(fd, data, count, at); }
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));

/* Copies within the kernel: callers fall back to writes. */
ssize_t sendfile64(int to, int from, off_t *at, size_t bytes) {
    char path[PATH_MAX];
    if (path_of(to, path)) return errno = EINVAL, -1;
    return syscall(SYS_sendfile, to, from, at, bytes);
}
ssize_t sendfile(int to, int from, off_t *at, size_t bytes) { return sendfile64(to, from, at, bytes); }
ssize_t copy_file_range(int from, off_t *start, int to, off_t *at, size_t bytes, unsigned flags) {
    char path[PATH_MAX];
    if (path_of(to, path)) return errno = EXDEV, -1;
    return syscall(SYS_copy_file_range, from, start, to, at, bytes, flags);
}

static int flush(int fd, long call) {
    char path[PATH_MAX];
    int kind;
    if (!path_of(fd, path)) return syscall(call, fd);
    if (fails(path, FLUSHES, &kind)) return -1;
    uint64_t token = ((uint64_t)getpid() << 32) + __atomic_add_fetch(&flushes, 1, __ATOMIC_RELAXED);
    put('S', inode_of(fd), token, 0, path, NULL, 0, 0);
    int result = syscall(call, fd);
    if (!result) put('E', inode_of(fd), token, 0, path, NULL, 0, 0);
    return result;
}
int fsync(int fd) { return flush(fd, SYS_fsync); }
int fdatasync(int fd) { return flush(fd, SYS_fdatasync); }

int ftruncate(int fd, off_t size) {
    char path[PATH_MAX];
    int kind, ours = path_of(fd, path);
    if (ours && fails(path, SPACES, &kind)) return -1;
    int result = syscall(SYS_ftruncate, fd, size);
    if (ours && !result) put('T', inode_of(fd), 0, size, path, NULL, 0, 0);
    return result;
}
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
int fallocate(int fd, int mode, off_t at, off_t bytes) {
    char path[PATH_MAX];
    int kind, ours = path_of(fd, path);
    if (ours && fails(path, SPACES, &kind)) return -1;
    int result = syscall(SYS_fallocate, fd, mode, at, bytes);
    if (ours && !result && !mode) put('A', inode_of(fd), 0, at + bytes, path, NULL, 0, 0);
    return result;
}
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));
int posix_fallocate(int fd, off_t at, off_t bytes) {
    int saved = errno, result = fallocate(fd, 0, at, bytes) ? errno : 0;
    errno = saved;
    return result;
}
int posix_fallocate64(int, off_t, off_t) __attribute__((alias("posix_fallocate")));

static int open_path(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat at;
    int kind, ours = flags & (O_CREAT | O_TRUNC) && path_at(folder, name, path), saved = errno;
    int is_new = ours && flags & O_CREAT && stat(path, &at);
    errno = saved;
    if (is_new && fails(path, NAMES, &kind)) return -1;
    int fd = syscall(SYS_openat, folder, name, flags, mode);
    if (fd >= 0 && is_new) put_name('C', path, "");
    else if (fd >= 0 && ours && flags & O_TRUNC) put('T', inode_of(fd), 0, 0, path, NULL, 0, 0);
    return fd;
}
#define MODE(last) va_list rest; va_start(rest, last); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; va_end(rest)
int open(const char *path, int flags, ...) { MODE(flags); return open_path(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags); return open_path(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags); return open_path(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags); return open_path(folder, path, flags, mode); }

/* A change of names: `call` changes them, or they fail. */
#define NAMED(kind, path, other, is_ours, call)                 \
    int why, result;                                            \
    if ((is_ours) && fails(path, NAMES, &why)) return -1;       \
    result = (call);                                            \
    if ((is_ours) && !result) put_name(kind, path, other);      \
    return result

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    int ours = path_at(folder, name, path);
    NAMED('D', path, "", ours, syscall(SYS_mkdirat, folder, name, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    char path[PATH_MAX], other[PATH_MAX];
    int ours = path_at(from, old, path) & path_at(to, new, other);
    NAMED('R', path, other, ours, syscall(SYS_renameat2, from, old, to, new, flags));
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int from, const char *old, int to, const char *new, int flags) {
    char path[PATH_MAX], other[PATH_MAX];
    int ours = path_at(from, old, path) & path_at(to, new, other);
    NAMED('L', path, other, ours, syscall(SYS_linkat, from, old, to, new, flags));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }
int symlinkat(const char *target, int folder, const char *name) {
    char path[PATH_MAX];
    int ours = path_at(folder, name, path);
    NAMED('Y', path, target, ours, syscall(SYS_symlinkat, target, folder, name));
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
int unlinkat(int folder, const char *name, int flags) { /* removing needs no space */
    char path[PATH_MAX];
    int ours = path_at(folder, name, path), result = syscall(SYS_unlinkat, folder, name, flags);
    if (ours && !result) put_name('U', path, "");
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
