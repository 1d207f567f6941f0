/* Faults in the system calls that touch one folder, for processes that preload this library.

   A process arms it once, after its imports: the Nth counted call kills the process or fails with
   an error. Only calls on paths below the folder are counted. Every counted call may be traced. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, UNLINK = 16, MKDIR = 32, TRUNCATE = 64 };

static char folder[4096];
static long target = 0, seen = 0;
static int kinds = 0, error_number = 0, is_persistent = 0, trace = -1;

void nunatak_arm(const char *root, int counted, long nth, int error, int persistent, int fd) {
    strncpy(folder, root, sizeof folder - 1);
    kinds = counted;
    target = nth;
    error_number = error;
    is_persistent = persistent;
    trace = fd;
    seen = 0;
}

static int locate(int descriptor, const char *path, char *out) {
    char link[64];
    ssize_t size = 0;
    out[0] = 0;
    if (path == NULL || path[0] != '/') {
        if (descriptor < 0) return 0;
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        size = readlink(link, out, 4095);
        if (size < 0) return 0;
        out[size] = 0;
    }
    if (path != NULL) snprintf(out + size, 4095 - size, "%s%s", size ? "/" : "", path);
    return strncmp(out, folder, strlen(folder)) == 0;
}

/* Nonzero: the call must fail; errno is set. */
static int strikes(int kind, const char *name, int descriptor, const char *path) {
    static __thread int is_inside = 0;
    char where[8192];
    int saved = errno, result = 0;
    if (folder[0] == 0 || is_inside) return 0;
    is_inside = 1;
    if (locate(descriptor, path, where)) {
        if (trace >= 0) dprintf(trace, "%s %s\n", name, where);
        if (kinds & kind) {
            seen++;
            if (target > 0 && (seen == target || (is_persistent && seen > target))) {
                if (error_number == 0) kill(getpid(), SIGKILL);
                result = 1;
            }
        }
    }
    is_inside = 0;
    errno = result ? error_number : saved;
    return result;
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = dlsym(RTLD_NEXT, #name)
#define CHANGES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT))

int open(const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
    NEXT(open);
    if (strikes(OPEN, CHANGES(flags) ? "create" : "open", AT_FDCWD, path)) return -1;
    return next(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
    NEXT(open64);
    if (strikes(OPEN, CHANGES(flags) ? "create" : "open", AT_FDCWD, path)) return -1;
    return next(path, flags, mode);
}
int openat(int at, const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
    NEXT(openat);
    if (strikes(OPEN, CHANGES(flags) ? "create" : "open", at, path)) return -1;
    return next(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
    NEXT(openat64);
    if (strikes(OPEN, CHANGES(flags) ? "create" : "open", at, path)) return -1;
    return next(at, path, flags, mode);
}
ssize_t write(int fd, const void *data, size_t size) {
    NEXT(write);
    if (fd > 2 && fd != trace && strikes(WRITE, "write", fd, NULL)) return -1;
    return next(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    NEXT(pwrite);
    if (strikes(WRITE, "write", fd, NULL)) return -1;
    return next(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    NEXT(pwrite64);
    if (strikes(WRITE, "write", fd, NULL)) return -1;
    return next(fd, data, size, offset);
}
int fsync(int fd) { NEXT(fsync); return strikes(SYNC, "sync", fd, NULL) ? -1 : next(fd); }
int fdatasync(int fd) { NEXT(fdatasync); return strikes(SYNC, "sync", fd, NULL) ? -1 : next(fd); }
int ftruncate(int fd, off_t size) {
    NEXT(ftruncate);
    return strikes(TRUNCATE, "truncate", fd, NULL) ? -1 : next(fd, size);
}
int ftruncate64(int fd, off64_t size) {
    NEXT(ftruncate64);
    return strikes(TRUNCATE, "truncate", fd, NULL) ? -1 : next(fd, size);
}
int rename(const char *from, const char *to) {
    NEXT(rename);
    return strikes(RENAME, "rename", AT_FDCWD, to) ? -1 : next(from, to);
}
int renameat(int from_at, const char *from, int to_at, const char *to) {
    NEXT(renameat);
    return strikes(RENAME, "rename", to_at, to) ? -1 : next(from_at, from, to_at, to);
}
int unlink(const char *path) {
    NEXT(unlink);
    return strikes(UNLINK, "unlink", AT_FDCWD, path) ? -1 : next(path);
}
int unlinkat(int at, const char *path, int flags) {
    NEXT(unlinkat);
    return strikes(UNLINK, "unlink", at, path) ? -1 : next(at, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    return strikes(MKDIR, "mkdir", AT_FDCWD, path) ? -1 : next(path, mode);
}
