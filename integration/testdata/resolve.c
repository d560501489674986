/* Resolves a name as a libc does, and talks to it: resolve HOST PORT [addrconfig]. */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
	char buf[100];
	if (argc > 3)
		hints.ai_flags = AI_ADDRCONFIG;
	if (getaddrinfo(argv[1], argv[2], &hints, &list) != 0) {
		puts("no address");
		return 1;
	}
	for (struct addrinfo *a = list; a; a = a->ai_next) {
		int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
		if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) < 0)
			continue;
		write(fd, "hello\n", 6);
		int n = read(fd, buf, sizeof buf);
		fwrite(buf, 1, n > 0 ? n : 0, stdout);
		return 0;
	}
	puts("not connected");
	return 1;
}
