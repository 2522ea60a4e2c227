// Runs a program as an older Linux would: old_kernel 4.13 PROGRAM ARGUMENT…
//
// Linux 4.13 wipes no page in forked children; 3.14 also lacks locks of open file descriptions.
// `flock` and `fallocate` stand for sandboxes that forbid that call.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
// Skips `skipped` instructions if the value is equal, and otherwise goes on with the next one.
#define IF(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, skipped, 0)
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, value)

int main(int count, char **arguments) {
    const char *kind = count > 2 ? arguments[1] : "";
    int forbidden = !strcmp(kind, "flock") ? SYS_flock : -1;
    if (!strcmp(kind, "fallocate"))
        forbidden = SYS_fallocate;
    struct sock_filter filter[] = {
        WORD(nr),
        IF(forbidden, 11),
        IF(SYS_madvise, 6),
        IF(!strcmp(kind, "3.14") ? SYS_fcntl : -1, 1),
        ANSWER(SECCOMP_RET_ALLOW),
        WORD(args[1]),
        IF(F_OFD_SETLK, 4),
        IF(F_OFD_GETLK, 3),
        ANSWER(SECCOMP_RET_ALLOW),
        WORD(args[2]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_WIPEONFORK, 0, 1),
        ANSWER(SECCOMP_RET_ERRNO | EINVAL),
        ANSWER(SECCOMP_RET_ALLOW),
        ANSWER(SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (count < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("old_kernel");
        return 125;
    }
    execv(arguments[2], arguments + 2);
    perror(arguments[2]);
    return 126;
}
