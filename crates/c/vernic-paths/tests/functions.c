/* Each function that the library stands before, on a file that only it can show. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/types.h>
#include <unistd.h>

#define FILE_ "/sys/class/infiniband/vernic0/ports/1/state"
#define FOLDER "/sys/class/infiniband/vernic0/ports"
#define LINK "/dev/infiniband/uverbs0"

static int failed;

static void check(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "%s does not find it\n", what);
		failed = 1;
	}
}
#define CHECK(call) check((call), #call)

int main(void)
{
	struct stat status;
	struct stat64 status64;
	struct statx statusx;
	struct dirent **names;
	struct dirent64 **names64;
	struct statfs system;
	struct statfs64 system64;
	struct statvfs vsystem;
	struct statvfs64 vsystem64;
	char text[PATH_MAX];

	CHECK(stat(FILE_, &status) == 0 && status.st_size == 10);
	CHECK(stat64(FILE_, &status64) == 0);
	CHECK(lstat(LINK, &status) == 0 && S_ISLNK(status.st_mode));
	CHECK(lstat64(LINK, &status64) == 0);
	CHECK(stat(LINK, &status) == 0 && S_ISCHR(status.st_mode));
	CHECK(fstatat(AT_FDCWD, FILE_, &status, 0) == 0);
	CHECK(fstatat64(AT_FDCWD, FILE_, &status64, 0) == 0);
	CHECK(statx(AT_FDCWD, FILE_, 0, STATX_SIZE, &statusx) == 0 && statusx.stx_size == 10);

	CHECK(access(FILE_, R_OK) == 0);
	CHECK(eaccess(FILE_, R_OK) == 0);
	CHECK(euidaccess(FILE_, R_OK) == 0);
	CHECK(faccessat(AT_FDCWD, FILE_, R_OK, 0) == 0);

	CHECK(open(FILE_, O_RDONLY) >= 0);
	CHECK(open64(FILE_, O_RDONLY) >= 0);
	CHECK(openat(AT_FDCWD, FILE_, O_RDONLY) >= 0);
	CHECK(openat64(AT_FDCWD, FILE_, O_RDONLY) >= 0);
	CHECK(creat("/dev/infiniband/made", 0600) >= 0);
	CHECK(creat64("/dev/infiniband/made", 0600) >= 0);
	CHECK(fopen(FILE_, "r") != NULL);
	CHECK(fopen64(FILE_, "r") != NULL);
	CHECK(freopen(FILE_, "r", stdin) != NULL);
	CHECK(freopen64(FILE_, "r", stdin) != NULL);

	CHECK(opendir(FOLDER) != NULL);
	CHECK(scandir(FOLDER, &names, NULL, alphasort) == 3);
	CHECK(scandir64(FOLDER, &names64, NULL, NULL) == 3);
	CHECK(scandirat(AT_FDCWD, FOLDER, &names, NULL, NULL) == 3);
	CHECK(scandirat64(AT_FDCWD, FOLDER, &names64, NULL, NULL) == 3);

	CHECK(statfs(FILE_, &system) == 0);
	CHECK(statfs64(FILE_, &system64) == 0);
	CHECK(statvfs(FILE_, &vsystem) == 0);
	CHECK(statvfs64(FILE_, &vsystem64) == 0);
	CHECK(inotify_add_watch(inotify_init(), FOLDER, IN_CREATE) >= 0);

	CHECK(readlink(LINK, text, sizeof(text)) == 9);
	CHECK(readlinkat(AT_FDCWD, LINK, text, sizeof(text)) == 9);
	CHECK(realpath(FOLDER, text) != NULL && strstr(text, FOLDER));
	CHECK(canonicalize_file_name(FOLDER) != NULL);
	CHECK(chdir(FOLDER) == 0 && access("1/state", R_OK) == 0);

	/* What programs call that were built otherwise than this one. */
	int (*xstat)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, "__xstat");
	int (*lxstat)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, "__lxstat");
	int (*fxstatat)(int, int, const char *, struct stat *, int) = dlsym(RTLD_DEFAULT, "__fxstatat");
	int (*open_2)(const char *, int) = dlsym(RTLD_DEFAULT, "__open64_2");
	int (*openat_2)(int, const char *, int) = dlsym(RTLD_DEFAULT, "__openat_2");
	char *(*realpath_chk)(const char *, char *, size_t) = dlsym(RTLD_DEFAULT, "__realpath_chk");
	ssize_t (*readlink_chk)(const char *, char *, size_t, size_t) =
		dlsym(RTLD_DEFAULT, "__readlink_chk");
	/* The version of `struct stat` is 1 on x86-64 and 0 elsewhere. */
	CHECK(xstat(1, FILE_, &status) == 0 || xstat(0, FILE_, &status) == 0);
	CHECK(lxstat(1, LINK, &status) == 0 || lxstat(0, LINK, &status) == 0);
	CHECK(fxstatat(1, AT_FDCWD, FILE_, &status, 0) == 0 ||
	      fxstatat(0, AT_FDCWD, FILE_, &status, 0) == 0);
	CHECK(open_2(FILE_, O_RDONLY) >= 0);
	CHECK(openat_2(AT_FDCWD, FILE_, O_RDONLY) >= 0);
	CHECK(realpath_chk(FOLDER, text, sizeof(text)) != NULL);
	CHECK(readlink_chk(LINK, text, sizeof(text), sizeof(text)) == 9);

	if (!failed)
		puts("ok");
	return failed;
}
