/* traffic: neighbours with verified flows, and attackers that need speed. Written from the specifications
 * (vhost-user, virtio 1.2, vfio-user) for the tests of this folder; it shares no code with the engine.
 *
 *   traffic neighbours [--flow A B] [--both] [--ping C D] [--reconnect]
 *       Drives virtio-net front ends at the sockets A to D until standard input ends. A sends numbered frames
 *       to B (with --both also B to A), at most WINDOW of them under way; every byte of each is compared. C and D
 *       play ping-pong. Prints a JSON object every 100 ms, all counters since the start, and a last one.
 *   traffic flood SOCKET SECONDS [--to MAC] [--from MAC] [--sources N] [--bytes N] [--rate N] [--gso N] [--pieces N]
 *                 [--receive N] [--ring N]
 *       Sends as fast as it can, or `rate` a second; --gso gives a TCP frame to be cut into segments of N bytes,
 *       --pieces spreads a frame over N descriptors, --receive offers N receive buffers and never takes them back.
 *   traffic share VICTIM EVIL MODE SECONDS [IDLE...]
 *       A victim floods by one queue while EVIL, with 16 queues, floods by one of them (MODE flood) or has exactly one frame
 *       there at any time (MODE one) and sends one by each of the others, and by each of 16 of every port IDLE, now and then,
 *       so that all of them go on being polled. How many frames of each were taken.
 *   traffic swap PATH FILE SPARE UID
 *       As that user, puts a link to FILE at PATH as soon as something is there, again and again.
 *   traffic storm SOCKET SECONDS REGISTER VALUE [VALUE]
 *       Writes the values in turn into a 32-bit register of BAR 0 of a vfio-user device, as fast as it can.
 */
#include "traffic.h"

#include <signal.h>

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    int code = 2;
    if (argc > 1 && !strcmp(argv[1], "neighbours")) code = neighbours(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "flood")) code = flood(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "storm")) code = storm(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "share")) code = share(argc, argv);
    else if (argc > 1 && !strcmp(argv[1], "swap")) code = swap(argc, argv);
    if (code == 2) fprintf(stderr, "traffic: wrong arguments; see the head of attacks/traffic/main.c\n");
    return code;
}
