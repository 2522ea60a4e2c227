// A file of the program's own is truncated. The program handles the signal as named: by a handler
// installed before or after it starts to use the GPU, or not at all.
#include "gpu.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGE 4096

static char *own;
static int file, is_once;
static volatile int handled, wrong;
static sigjmp_buf back;
static char stack[1 << 16];

static void replace(void) {
    mmap(own, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static void with_info(int number, siginfo_t *about, void *context) {
    sigset_t blocked;
    char here;
    handled++;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    wrong |= number != SIGBUS || !context || about->si_code != BUS_ADRERR || about->si_addr != own;
    wrong |= !sigismember(&blocked, SIGUSR2) || sigismember(&blocked, SIGUSR1);
    wrong |= &here < stack || &here >= stack + sizeof stack;
    errno = 77;
    replace();
}

static void plain(int number) {
    char here;
    handled++;
    wrong |= number != SIGBUS || (&here >= stack && &here < stack + sizeof stack);
    replace();
}

static void jumps(int number) {
    handled++;
    siglongjmp(back, 1);
}

static void counts(int number) { handled++; }

static void install(const char *how) {
    struct sigaction action = {0};
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, NULL);
    sigaddset(&action.sa_mask, SIGUSR2);
    action.sa_handler = !strcmp(how, "jumps") ? jumps : !strcmp(how, "sent") ? counts : plain;
    if (!strcmp(how, "info")) {
        action.sa_sigaction = with_info;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    }
    is_once = !strcmp(how, "once");
    if (is_once)
        action.sa_flags = SA_RESETHAND;
    if (!strcmp(how, "ignored") || !strcmp(how, "sent_ignored"))
        action.sa_handler = SIG_IGN;
    if (!strcmp(how, "default") || !strcmp(how, "sent_default"))
        action.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &action, NULL);
}

static void fault(void) {
    ftruncate(file, PAGE);
    own = mmap(own, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (own ? MAP_FIXED : 0), file, 0);
    *own = 1;
    ftruncate(file, 0);
    if (!sigsetjmp(back, 1))
        wrong |= *(volatile char *)own;
}

int main(int count, char **arguments) {
    const char *how = arguments[1];
    int is_early = !strcmp(arguments[2], "before");
    // By number, since the function exists only from glibc 2.27 on.
    file = (int)syscall(SYS_memfd_create, "own", 0);
    if (is_early)
        install(how);
    say("start %d", gpu_start());
    address held = gpu_alloc(200);
    if (!is_early)
        install(how);
    gpu_fill();
    hold();
    pid_t child = fork();
    if (!child) {
        // The child has none of the library's mappings, and may have its own at the same address.
        if (strncmp(how, "sent", 4))
            fault();
        else
            raise(SIGBUS);
        _exit(handled);
    }
    int status;
    waitpid(child, &status, 0);
    say("child %x", status);
    for (int round = 0; round < 2; round++) {
        if (strncmp(how, "sent", 4))
            fault();
        else
            raise(SIGBUS);
        say("handled %d wrong %d", handled, wrong);
    }
    int before = handled;
    say("free %d handled %d", gpu_free(held), handled - before);
    return 0;
}
