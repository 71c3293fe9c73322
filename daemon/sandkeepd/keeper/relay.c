/* `keeper -r DIR`: the relay between a pod's keeper and the daemon, which has a mirror of DIR: it carries requests and input
 * into the pod, and answers and journals out of it. Standard input and output are one connection, which can break at any
 * moment. What comes is a line each, some with as many bytes after it as they say:
 *
 *   have NAME SIZE              the mirror holds so many bytes of OUT/p/NAME, or of OUT/exits
 *   begin MOST                  that was all. From here on, beginnings of journals are left out that more than MOST bytes follow
 *   put NAME OFFSET LENGTH ...  bytes of IN/NAME      rm NAME   remove it
 *   drop NAME                   remove OUT/p/NAME     punch NAME SIZE   free the blocks of its first bytes
 *   ask NUMBER LENGTH ...       a request to the keeper, with its newline
 *
 * What is sent:
 *   hello 1 NUMBER              answers `begin`: the last request that the keeper was given
 *   in NAME SIZE                there is IN/NAME     ready   and no other
 *   data NAME OFFSET LENGTH ... bytes of a journal or of `exits`; what is before OFFSET and was not sent is left out
 *   cut                         `exits` was made shorter, and begins anew
 *   name OLD NEW                a journal has another name     gone NAME   it was dropped
 *   took NUMBER                 the keeper was given all requests up to this one
 *   lack NAME SIZE              there was no room for more of IN/NAME than this
 *   synced                      all has been sent that was there at the beginning
 *
 * A request is never given twice: its number goes into a file as it is given, by memory that both have in common, and a signal
 * can end this only where it waits. All that a process wrote is sent before the line of `exits` that says that it ended. In
 * memory there is never more than `outgoing`, however slowly that is read. */

#include "relay.h"

enum { MODIFIED = 2, MOVED_HERE = 0x80, CREATED = 0x100, LOST_EVENTS = 0x4000 };
enum { PATIENCE_MS = 1000, SOONEST_MS = 5, LATEST_MS = 200, TAKE_OVER_MS = 2000, STEP_MS = 5 };

char in[PATH_BYTES], p[PATH_BYTES], path[PATH_BYTES + NAME_BYTES];
static int notices, watched;

/* Noticing */

static void notice(const char *name) {
	if (is_name(name, 1))
		queue(find_or_add(name));
}

static void take_notices(void) {
	static char events[4096] __attribute__((aligned(8)));
	struct {
		int watch;
		unsigned mask, cookie, bytes;
	} event;
	long bytes = call(READ, notices, (long)events, sizeof events, 0, 0);
	for (long start = 0; start < bytes; start += sizeof event + event.bytes) {
		copy(&event, events + start, sizeof event);
		if (event.mask & LOST_EVENTS)
			read_names(p, notice);
		else if (event.bytes)
			notice(events + start + sizeof event);
	}
}

/* Where there is no inotify, all is looked at, seldom while nothing happens. */
static void watch(const char *answers) {
	long all = MODIFIED | CREATED | MOVED_HERE;
	notices = (int)call(INOTIFY_INIT1, NONBLOCK | CLOEXEC, 0, 0, 0, 0);
	watched = notices >= 0 && call(INOTIFY_ADD_WATCH, notices, (long)answers, MODIFIED, 0, 0) >= 0 &&
	          call(INOTIFY_ADD_WATCH, notices, (long)p, all, 0, 0) >= 0;
}
/* The beginning */

static void nap(void) {
	await(0, 0, STEP_MS);
}

/* Be the only one: an earlier one may not have noticed yet that its connection is gone. */
static void displace(void) {
	char text[24];
	struct line own;
	long file = open_at(path_of(path, in, ".relay", ""), RDWR | CREAT | NOFOLLOW);
	for (long waited = 0; call(FLOCK, file, LOCK_ALONE | LOCK_QUICKLY, 0, 0, 0) < 0; waited += STEP_MS) {
		long bytes = call(PREAD, file, (long)text, sizeof text - 1, 0, 0);
		text[bytes > 0 ? bytes : 0] = 0;
		long pid = number_of(text);
		if (waited > 2 * TAKE_OVER_MS) {
			say("another relay does not end\n");
			leave(CANNOT);
		}
		if (pid > 1 && pid < 1L << 30) {
			call(KILL, pid, waited < TAKE_OVER_MS ? SIGTERM : SIGKILL, 0, 0, 0);
			call(KILL, pid, SIGCONT, 0, 0, 0);
		}
		nap();
	}
	own.used = 0;
	add_number(&own, call(GETPID, 0, 0, 0, 0, 0));
	add(&own, "\n         ");
	call(PWRITE, file, (long)own.text, own.used, 0, 0);
}

static void open_given(void) {
	static const char zeros[8];
	long file = open_at(path_of(path, in, ".given", ""), RDWR | CREAT | NOFOLLOW);
	if (file >= 0 && size_of(file) < (long)sizeof zeros)
		call(PWRITE, file, (long)zeros, sizeof zeros, 0, 0);
	long found = call(MMAP, 0, sizeof *given, 3, 1, file);
	if (file < 0 || (found < 0 && found > -4096)) {
		say("the number of the last request cannot be kept\n");
		leave(CANNOT);
	}
	given = (volatile long *)found;
	shut(file);
}

static void open_all(const char *directory) {
	char answers[PATH_BYTES];
	if (length(directory) + ID_BYTES > PATH_BYTES)
		leave(CALLED_WRONGLY);
	path_of(in, directory, "in", "");
	path_of(p, directory, "out/p", "");
	fifo = (int)open_at(path_of(path, in, ".control", ""), RDWR | NONBLOCK | NOFOLLOW);
	exits = (int)open_at(path_of(answers, directory, "out/exits", ""), RDONLY | NONBLOCK | NOFOLLOW);
	if (fifo < 0 || size_of(exits) < 0) {
		say("no keeper serves this directory\n");
		leave(CANNOT);
	}
	displace();
	open_given();
	watch(answers);
	call(FCNTL, 1, SET_FLAGS, WRONLY | NONBLOCK, 0, 0);
}

/* How long nothing has to be looked at, in milliseconds; -1 for ever. */
static long patience(long *period, int idle) {
	if (more)
		return 0;
	*period = !idle ? SOONEST_MS : *period * 2 < LATEST_MS ? *period * 2 : LATEST_MS;
	if (!watched && begun)
		return *period;
	return untold ? PATIENCE_MS : -1;
}

void relay(const char *directory) {
	word held = 1UL << (SIGTERM - 1) | 1UL << (SIGHUP - 1) | 1UL << (SIGINT - 1) | 1UL << (SIGPIPE - 1);
	long period = SOONEST_MS;
	int idle = 0;
	default_signals();
	handle(SIGXFSZ, 1);
	call(SIGPROCMASK, BLOCK, (long)&held, 0, 8, 0);
	open_all(directory);
	for (;;) {
		produce();
		flush();
		more &= !used; /* what is not written yet comes first */
		struct polled polled[] = {
		    {1, used ? WRITABLE : 0, 0},
		    {waiting ? fifo : wants_input() ? 0 : -1, waiting ? WRITABLE : READABLE, 0},
		    {notices, READABLE, 0},
		};
		long found = await(polled, watched ? 3 : 2, patience(&period, idle));
		if (polled[0].found & BROKEN)
			leave(0);
		idle = found == 0;
		if (watched && polled[2].found)
			take_notices();
		if (!watched && begun && !more)
			read_names(p, notice);
		if (polled[1].found && !waiting)
			read_some();
		else if (!waiting || polled[1].found)
			take_lines(); /* for which there was no room */
	}
}
