// A switch's cables with a latency: each joins a node's NIC (a TAP device) to its port of the bridge, and holds each frame
// of the node for the latency; frames to the node pass at once. Offloads stay on, so a frame may hold 64 KiB.
// cable LATENCY_NS SWITCH NODE...: names of network namespaces, in which eth0 and port0, port1, ... are.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MAX_NODES = 254, MAX_FRAME = 66000, FRAMES_AT_ONCE = 64 };

struct frame {
    struct frame *next;
    long long due_ns;
    ssize_t length;
    char bytes[];
};

struct cable {
    int nic, port;
    struct frame *first, *last;
};

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void enter(const char *namespace) {
    char path[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", namespace);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || setns(descriptor, CLONE_NEWNET)) fail(path);
    close(descriptor);
}

static int attach(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    int descriptor = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) fail("/dev/net/tun");
    if (ioctl(descriptor, TUNSETIFF, &request)) fail(name);
    if (ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) fail("offloads");
    return descriptor;
}

static void keep(struct cable *cable, const char *bytes, ssize_t length, long long due_ns) {
    struct frame *frame = malloc(sizeof *frame + length);
    if (!frame) fail("memory");
    *frame = (struct frame){.due_ns = due_ns, .length = length};
    memcpy(frame->bytes, bytes, length);
    *(cable->first ? &cable->last->next : &cable->first) = frame;
    cable->last = frame;
}

// Pass on what is there and what is due; return when the next frame is due.
static long long serve(struct cable *cable, long long latency_ns, long long next_ns) {
    static char bytes[MAX_FRAME];
    ssize_t length;
    for (int left = FRAMES_AT_ONCE; left && (length = read(cable->nic, bytes, sizeof bytes)) > 0; left--)
        keep(cable, bytes, length, now_ns() + latency_ns);
    for (int left = FRAMES_AT_ONCE; left && (length = read(cable->port, bytes, sizeof bytes)) > 0; left--)
        if (write(cable->nic, bytes, length) < 0 && errno == EBADF) fail("NIC");
    for (struct frame *frame; (frame = cable->first) && frame->due_ns <= now_ns(); free(frame)) {
        if (write(cable->port, frame->bytes, frame->length) < 0 && errno == EBADF) fail("port");
        cable->first = frame->next;
    }
    return cable->first && cable->first->due_ns < next_ns ? cable->first->due_ns : next_ns;
}

int main(int count, char **names) {
    static struct cable cables[MAX_NODES];
    static struct pollfd ready[2 * MAX_NODES];
    long long latency_ns = atoll(names[1]);
    int num_nodes = count - 3;
    // A real cable does not wait for a core.
    if (sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1})) fail("real-time priority");
    for (int node = 0; node < num_nodes; node++) {
        char port[IFNAMSIZ];
        enter(names[3 + node]);
        cables[node].nic = attach("eth0");
        enter(names[2]);
        snprintf(port, sizeof port, "port%d", node);
        cables[node].port = attach(port);
        ready[2 * node] = (struct pollfd){.fd = cables[node].nic, .events = POLLIN};
        ready[2 * node + 1] = (struct pollfd){.fd = cables[node].port, .events = POLLIN};
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        long long next_ns = now_ns() + 1000000000LL;
        for (int node = 0; node < num_nodes; node++) next_ns = serve(&cables[node], latency_ns, next_ns);
        long long wait_ns = next_ns - now_ns();
        if (wait_ns <= 0) continue;
        struct timespec wait = {wait_ns / 1000000000LL, wait_ns % 1000000000LL};
        ppoll(ready, 2 * num_nodes, &wait, NULL);
    }
}
