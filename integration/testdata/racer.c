/* Executes a link that another thread swaps between a listed program, one that
   isn't, and a loader: racer FOLDER LISTED UNLISTED LOADER N. Wins are children
   that ran something else than LISTED: id and loaders write, true does not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[4096];
static char *targets[3];
static volatile int stop;

static void *swap(void *unused) {
	(void)unused;
	/* Both the link and the text of the path change. */
	for (int i = 0; !stop; i++) {
		char made[4200];
		snprintf(made, sizeof made, "%s.new", path);
		unlink(made);
		if (symlink(targets[i % 3], made) == 0)
			rename(made, path);
	}
	return NULL;
}

int main(int argc, char **argv) {
	if (argc != 6)
		return 2;
	snprintf(path, sizeof path, "%s/link", argv[1]);
	for (int i = 0; i < 3; i++)
		targets[i] = argv[2 + i];
	if (symlink(targets[0], path) < 0)
		return 3;
	pthread_t thread;
	pthread_create(&thread, NULL, swap, NULL);
	int wins = 0, n = atoi(argv[5]);
	for (int i = 0; i < n; i++) {
		int out[2];
		if (pipe(out) < 0)
			return 4;
		pid_t pid = fork();
		if (pid == 0) {
			dup2(out[1], 1);
			int null = open("/dev/null", O_WRONLY);
			dup2(null, 2);
			close(out[0]);
			close(out[1]);
			char *args[] = {"id", "/usr/bin/id", NULL}, *env[] = {NULL};
			execve(path, args, env);
			_exit(111);
		}
		close(out[1]);
		char buf[64];
		if (read(out[0], buf, sizeof buf) > 0)
			wins++;
		close(out[0]);
		waitpid(pid, NULL, 0);
	}
	stop = 1;
	pthread_join(thread, NULL);
	printf("%d wins\n", wins);
	return 0;
}
