/* swap: a process that swaps a new file for a link. */
#include "traffic.h"

#include <grp.h>
#include <sys/stat.h>

int swap(int argc, char **argv) {
    if (argc != 6) return 2;
    uid_t user = (uid_t)atoi(argv[5]);
    if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)) die("another user");
    for (;;) {
        struct stat s;
        if (symlink(argv[3], argv[4]) && errno != EEXIST) die("symlink");
        while (lstat(argv[2], &s)) continue;
        if (!S_ISLNK(s.st_mode) && rename(argv[4], argv[2]) == 0) {
            /* Long enough for a process that follows it; then the link goes, so that the next one can be made. */
            for (uint64_t t = now(); now() - t < 200000;) continue;
        }
        unlink(argv[2]);
    }
}
