/* `keeper -p DIR` and `keeper -d DIR`: the keeper of a pod, which makes by itself the directory that elsewhere the daemon makes.
 * DIR is the pod's alone, and so is all in it, as the code inside has the same user. */

#include "keeper.h"

enum { LEAST_LOCK = 64 }; /* a descriptor that `keep_sandbox` leaves open */

static char in[PATH_BYTES], out[PATH_BYTES];

static void give_up(const char *what, const char *why) {
	say(what);
	say(why);
	leave(CALLED_WRONGLY);
}

static void make_directory(const char *path, long mode) { call(MKDIRAT, HERE, (long)path, mode, 0, 0); }

/* Its own program, where processes in terminals look for it: the file that was started may go, or lie where those cannot see it. */
static void copy_program(const char *called) {
	char made[PATH_BYTES + ID_BYTES], path[PATH_BYTES + ID_BYTES], piece[4096];
	path_of(path, in, ".keeper", "");
	path_of(made, in, ".keeper", ".new");
	long from = open_at("/proc/self/exe", RDONLY), bytes = -1;
	if (from < 0)
		from = open_at(called, RDONLY);
	call(UNLINKAT, HERE, (long)made, 0, 0, 0);
	long to = call(OPENAT, HERE, (long)made, WRONLY | CREAT | EXCLUSIVE | NOFOLLOW | CLOEXEC, 0755, 0);
	while (from >= 0 && to >= 0 && (bytes = call(READ, from, (long)piece, sizeof piece, 0, 0)) > 0)
		if (call(WRITE, to, (long)piece, bytes, 0, 0) != bytes) {
			bytes = -1;
			break;
		}
	shut(from);
	shut(to);
	if (bytes < 0 || call(RENAMEAT, HERE, (long)made, HERE, (long)path, 0) < 0)
		give_up(path, ": the program cannot be copied there\n");
}

/* Be the one that serves the directory; 0 if another does. It holds its lock alone until it is ready, then shared: whoever can
 * share it meanwhile has waited until then. */
static int take_lock(void) {
	char path[PATH_BYTES + ID_BYTES];
	long file = open_at(path_of(path, in, ".keeper", ".lock"), RDWR | CREAT | NOFOLLOW);
	serving = (int)call(FCNTL, file, DUP_CLOEXEC, LEAST_LOCK, 0, 0);
	shut(file);
	if (serving < 0)
		give_up(path, ": cannot be opened\n");
	if (call(FLOCK, serving, LOCK_ALONE | LOCK_QUICKLY, 0, 0, 0) >= 0)
		return 1;
	while (call(FLOCK, serving, LOCK_SHARED, 0, 0, 0) == INTR)
		;
	return call(FLOCK, serving, LOCK_ALONE | LOCK_QUICKLY, 0, 0, 0) >= 0;
}

/* Comes back in a process of its own; the one that was started ends when that serves. */
static void go_behind(void) {
	int ready[2];
	char said[8];
	long pid = call(PIPE2, (long)ready, CLOEXEC, 0, 0, 0);
	if (pid >= 0)
		pid = call(CLONE, SIGCHLD, 0, 0, 0, 0);
	if (pid < 0)
		give_up("keeper", ": cannot start another process\n");
	if (pid > 0) {
		shut(ready[1]);
		long bytes;
		do
			bytes = call(READ, ready[0], (long)said, sizeof said, 0, 0);
		while (bytes == INTR);
		leave(bytes > 0 ? 0 : CALLED_WRONGLY);
	}
	call(SETSID, 0, 0, 0, 0, 0);
	put(ready[1], 1);
}

void keep_pod(char **words, int behind) {
	char path[PATH_BYTES + ID_BYTES];
	char *directory = words[2], *given[] = {in, out, 0, 0, 0, 0};
	if (length(directory) + 2 * ID_BYTES > PATH_BYTES)
		leave(CALLED_WRONGLY);
	call(UMASK, 022, 0, 0, 0, 0);
	make_directory(directory, 0755);
	make_directory(path_of(in, directory, "in", ""), 0700);
	make_directory(path_of(out, directory, "out", ""), 0700);
	make_directory(path_of(path, directory, "out", "/p"), 0700);
	make_directory(path_of(path, directory, "tty", ""), 0700);
	if (!take_lock()) {
		if (!behind)
			give_up(directory, ": another keeper serves it\n");
		leave(0);
	}
	copy_program(words[0]);
	call(MKNODAT, HERE, (long)path_of(path, in, ".control", ""), FIFO | 0600, 0, 0);
	long control = open_at(path, RDWR | NOFOLLOW);
	if (control < 0)
		give_up(path, ": cannot be opened\n");
	if (behind)
		go_behind();
	call(PRCTL, SUBREAPER, 1, 0, 0, 0); /* of the process that serves: what it starts may leave children behind */
	put(control, 0);
	call(CHDIR, (long)"/", 0, 0, 0, 0);
	for (int i = 2; i < 5 && words[i + 1]; i++)
		given[i] = words[i + 1];
	keep_sandbox(given, 0);
}
