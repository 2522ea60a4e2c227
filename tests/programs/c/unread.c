// Programs whose standard error is not read, or cannot take a line at once: unread KIND. The
// program goes on after each refusal.
#include "gpu.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>

// The descriptor from which the other end is read, if it is read.
static int reader = -1;

static void check(int right, const char *what) {
    if (!right) {
        say("%s: %s", what, strerror(errno));
        exit(1);
    }
}

// Makes a descriptor the program's standard error.
static void put(int descriptor) { check(dup2(descriptor, 2) == 2, "dup2"); }

// Writes until not one more byte fits.
static void fill(int descriptor) {
    char bytes[4096] = {0};
    int flags = fcntl(descriptor, F_GETFL);
    check(fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0, "O_NONBLOCK");
    for (size_t piece = sizeof bytes; piece; piece /= 2)
        while (write(descriptor, bytes, piece) > 0)
            ;
    check(errno == EAGAIN, "full");
    check(fcntl(descriptor, F_SETFL, flags) == 0, "flags");
}

static void make_pipe(void) {
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    put(ends[1]);
    close(ends[1]);
    reader = ends[0];
}

// Makes a pipe that this process may not open again.
static void make_held_pipe(void) {
    make_pipe();
    check(fchmod(2, 0) == 0, "fchmod");
    check(getuid() || setuid(40001) == 0, "setuid");
}

static void make_sockets(int type) {
    int ends[2];
    check(socketpair(AF_UNIX, type, 0, ends) == 0, "socketpair");
    put(ends[1]);
    close(ends[1]);
    reader = ends[0];
}

static void make_terminal(void) {
    reader = posix_openpt(O_RDWR | O_NOCTTY);
    check(reader >= 0 && grantpt(reader) == 0 && unlockpt(reader) == 0, "a terminal");
    int slave = open(ptsname(reader), O_RDWR | O_NOCTTY);
    check(slave >= 0, "its other side");
    put(slave);
    close(slave);
}

// Becomes a background job of a terminal that stops output of such jobs.
static void go_to_background(void) {
    check(setsid() > 0, "setsid");
    make_terminal();
    check(ioctl(2, TIOCSCTTY, 0) == 0, "TIOCSCTTY");
    struct termios settings;
    check(tcgetattr(2, &settings) == 0, "tcgetattr");
    settings.c_lflag |= TOSTOP;
    check(tcsetattr(2, TCSANOW, &settings) == 0, "TOSTOP");
    int status = 0;
    pid_t job = fork();
    if (job) {
        setpgid(job, job);
        check(waitpid(job, &status, WUNTRACED) == job, "waitpid");
        if (WIFSTOPPED(status)) {
            say("stopped by signal %d", WSTOPSIG(status));
            kill(job, SIGKILL);
        }
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    setpgid(0, 0);
}

// Makes a file of the largest size that the process may write.
static void make_large_file(void) {
    FILE *file = tmpfile();
    check(file && ftruncate(fileno(file), 1 << 20) == 0, "a file");
    check(lseek(fileno(file), 0, SEEK_END) == 1 << 20, "its end");
    put(fileno(file));
}

int main(int count, char **arguments) {
    const char *kind = arguments[1];
    sigset_t set;
    int heard = 0;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    if (!strcmp(kind, "background"))
        go_to_background();
    say("start %d", gpu_start());
    if (!strcmp(kind, "pipe")) {
        make_pipe();
        heard = 1;
    } else if (!strcmp(kind, "closed-pipe") || !strcmp(kind, "pending")) {
        make_pipe();
        close(reader);
        if (!strcmp(kind, "pending")) {
            sigprocmask(SIG_BLOCK, &set, NULL);
            raise(SIGPIPE);
        }
    } else if (!strcmp(kind, "full-pipe")) {
        make_pipe();
        fill(2);
    } else if (!strcmp(kind, "held-pipe")) {
        make_held_pipe();
        heard = 1;
    } else if (!strcmp(kind, "full-held-pipe")) {
        make_held_pipe();
        fill(2);
    } else if (!strcmp(kind, "socket")) {
        make_sockets(SOCK_STREAM);
        heard = 1;
    } else if (!strcmp(kind, "closed-socket")) {
        make_sockets(SOCK_STREAM);
        close(reader);
    } else if (!strcmp(kind, "full-socket")) {
        make_sockets(SOCK_STREAM);
        fill(2);
    } else if (!strcmp(kind, "full-datagrams")) {
        make_sockets(SOCK_DGRAM);
        fill(2);
    } else if (!strcmp(kind, "terminal")) {
        make_terminal();
        heard = 1;
    } else if (!strcmp(kind, "stopped-terminal")) {
        make_terminal();
        check(tcflow(2, TCOOFF) == 0, "tcflow");
    } else if (!strcmp(kind, "full-terminal")) {
        make_terminal();
        fill(2);
    } else if (!strcmp(kind, "full-disk")) {
        put(open("/dev/full", O_WRONLY));
    } else if (!strcmp(kind, "large-file")) {
        struct rlimit limit = {1 << 20, 1 << 20};
        make_large_file();
        check(setrlimit(RLIMIT_FSIZE, &limit) == 0, "RLIMIT_FSIZE");
    } else if (strcmp(kind, "background")) {
        check(0, kind);
    }
    int flags = fcntl(2, F_GETFL);
    gpu_fill();
    check(fcntl(2, F_GETFL) == flags, "flags of standard error");
    sigset_t pending, mask;
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, NULL, &mask);
    int waits = !strcmp(kind, "pending");
    check(sigismember(&pending, SIGPIPE) == waits && sigismember(&mask, SIGPIPE) == waits,
          "SIGPIPE");
    check(!sigismember(&pending, SIGXFSZ) && !sigismember(&mask, SIGXFSZ), "SIGXFSZ");
    check(!sigismember(&mask, SIGTTOU), "SIGTTOU");
    if (heard && getenv("FILL")) {
        char line[1025] = {0};
        check(read(reader, line, sizeof line - 1) > 0, "a line");
        check(!strncmp(line, "gpulimit: refused ", 18) && strchr(line, '\n'), line);
    }
    hold();
    return 0;
}
