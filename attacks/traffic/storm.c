/* storm: writes of one register of a vfio-user device. */
#include "traffic.h"

#include <sys/socket.h>

int storm(int argc, char **argv) {
    if (argc < 6) return 2;
    uint64_t reg = strtoull(argv[4], NULL, 0);
    uint32_t values[2] = {(uint32_t)strtoul(argv[5], NULL, 0), (uint32_t)strtoul(argv[argc > 6 ? 6 : 5], NULL, 0)};
    int sock = dial(argv[2]);
    if (sock < 0) die(argv[2]);
    struct header { uint16_t id, command; uint32_t size, flags, error; };
    static const char json[] = "{\"capabilities\":{\"max_msg_fds\":8}}";
    struct { struct header h; uint16_t major, minor; char json[sizeof json]; } __attribute__((packed)) version = {
        {0, 1, sizeof version, 0, 0}, 0, 1, ""};
    memcpy(version.json, json, sizeof json);
    if (send(sock, &version, sizeof version, MSG_NOSIGNAL) != sizeof version) die("VERSION");
    struct header answer;
    if (recv(sock, &answer, sizeof answer, MSG_WAITALL) != sizeof answer || answer.size < sizeof answer) die("VERSION");
    static char rest[65536];
    size_t more = answer.size - sizeof answer;
    if (more > sizeof rest || recv(sock, rest, more, MSG_WAITALL) != (ssize_t)more) die("VERSION");
    struct { struct header h; uint64_t offset; uint32_t region, count, value; } __attribute__((packed)) write = {
        {1, 10, sizeof write, 0, 0}, reg, 0, 4, 0};
    struct { struct header h; uint64_t offset; uint32_t region, count; } __attribute__((packed)) done;
    // PCI command register: memory space and bus master. Without these the device's queues are never served.
    struct { struct header h; uint64_t offset; uint32_t region, count; uint16_t value; } __attribute__((packed)) command = {
        {2, 10, sizeof command, 0, 0}, 4, 7, 2, 6};
    if (send(sock, &command, sizeof command, MSG_NOSIGNAL) != sizeof command
        || recv(sock, &done, sizeof done, MSG_WAITALL) != sizeof done) die("command register");
    uint64_t start = now(), until = start + (uint64_t)(atof(argv[3]) * 1e9), count = 0;
    int gone = 0;
    while (now() < until && !gone) {
        write.h.id++;
        write.value = values[count % 2];
        if (send(sock, &write, sizeof write, MSG_NOSIGNAL) != sizeof write
            || recv(sock, &done, sizeof done.h, MSG_WAITALL) != sizeof done.h) { gone = 1; break; }
        size_t tail = done.h.size - sizeof done.h;
        if (tail > sizeof rest || (tail && recv(sock, rest, tail, MSG_WAITALL) != (ssize_t)tail)) gone = 1;
        count++;
    }
    printf("{\"writes\": %" PRIu64 ", \"seconds\": %.3f, \"hung_up\": %s}\n", count, (double)(now() - start) / 1e9, gone ? "true" : "false");
    return 0;
}
