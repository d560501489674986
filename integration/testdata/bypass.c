/* Runs a program by the loader, having seen to it that nobody is asked about a
   system call: bypass filter|ptrace CALL FOLDER LOADER PROGRAM, where CALL is
   tid or mmap. By a filter of its own the call is answered without being made;
   by ptrace it is made another. The loader is named by this process's working
   folder, so that whoever looks from elsewhere finds another file. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc != 6 || chdir(argv[3]) < 0)
		return 2;
	int call = strcmp(argv[2], "tid") == 0 ? SYS_set_tid_address : SYS_mmap;
	char path[4096], *args[] = {"ld", argv[5], NULL}, *env[] = {NULL};
	snprintf(path, sizeof path, "/proc/self/cwd/%s", argv[4]);
	if (strcmp(argv[1], "filter") == 0) {
		struct sock_filter rules[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		struct sock_fprog program = {4, rules};
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
			return 3;
		execve(path, args, env);
		return 9;
	}
#ifdef __x86_64__
	pid_t pid = fork();
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		execve(path, args, env);
		_exit(9);
	}
	int status;
	waitpid(pid, &status, 0);
	ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
	for (int i = 0; i < 5000; i++) {
		ptrace(PTRACE_SYSCALL, pid, 0, 0);
		if (waitpid(pid, &status, 0) < 0 || WIFEXITED(status) || WIFSIGNALED(status))
			break;
		struct user_regs_struct regs;
		if (WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80) && ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0 &&
		    regs.orig_rax == (unsigned long)call && (long)regs.rax == -38) {
			regs.orig_rax = SYS_getpid;
			ptrace(PTRACE_SETREGS, pid, 0, &regs);
		}
	}
#endif
	return 9;
}
