/* SPDX-License-Identifier: MIT */
/*
 * A TCP relay on loopback: relay LISTEN_PORT TARGET_HOST TARGET_PORT. Stopped by
 * SIGSTOP it is a cut cable (connections stand, nothing comes), killed it is a
 * closed port. One thread for each direction of a connection.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

struct way { int from, to; };

static void *carry(void *arg)
{
	struct way way = *(struct way *)arg;
	char buf[65536], *p;
	ssize_t n, done;

	free(arg);
	while ((n = read(way.from, buf, sizeof buf)) > 0) {
		for (p = buf; n > 0; n -= done, p += done) {
			done = write(way.to, p, (size_t)n);
			if (done <= 0)
				break;
		}
	}
	shutdown(way.to, SHUT_RDWR);
	shutdown(way.from, SHUT_RDWR);
	return NULL;	/* descriptors are left open: the other thread may still use them */
}

static void start(int from, int to)
{
	struct way *way = malloc(sizeof *way);
	pthread_t thread;
	int one = 1;

	*way = (struct way){ from, to };
	setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	pthread_create(&thread, NULL, carry, way);
	pthread_detach(thread);
}

int main(int argc, char **argv)
{
	struct sockaddr_in here = { .sin_family = AF_INET }, there = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, in, out;

	if (argc < 4) {	/* more is a mark by which the test finds it */
		fprintf(stderr, "usage: relay LISTEN_PORT TARGET_ADDRESS TARGET_PORT\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	here.sin_port = htons((unsigned short)atoi(argv[1]));
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	inet_pton(AF_INET, argv[2], &there.sin_addr);
	there.sin_port = htons((unsigned short)atoi(argv[3]));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 100)) {
		perror("relay");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		in = accept(listener, NULL, NULL);
		if (in < 0)
			continue;
		out = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(out, (struct sockaddr *)&there, sizeof there)) {
			close(in);
			close(out);
			continue;
		}
		start(in, out);
		start(out, in);
	}
}
