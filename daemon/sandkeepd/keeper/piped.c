/* `keeper -x in|out PROGRAM [ARGUMENT...]`: runs a program that moves data, over its own connection. The program has a pipe of
 * data as descriptor 3, which it reads (in) or writes (out), and reads control words from 4. When the connection ends both are
 * closed, and the program undoes its work. This ends as the program does: with 128 and the signal's number after one.
 *
 * in    standard input is pieces, each with its length before it, in 4 bytes, the first the highest; a length of 0 is their end,
 *       and what follows are control words. Standard output is the program's own
 * out   standard input is control words. Standard output is pieces, each with a byte before it, 1 for data and 2 for the
 *       program's standard output, and its length */

#include "keeper.h"

enum { PIECE = 65536, HEAD = 5, DATA = 1, TEXT = 2 };

struct way {
	int pipe;
	long from, used; /* of the piece, what was not written yet */
	char piece[PIECE + HEAD];
};

static struct way up, down;
static int data, control, text = -1, children, ended, over;
static long status, program;
static unsigned char head[4];
static long head_bytes, left; /* of the piece that comes */

static void shut_off(int *descriptor) {
	shut(*descriptor);
	*descriptor = -1;
}

/* Nobody is there any more. */
static void hang_up(void) {
	over = 1;
	shut_off(&data);
	shut_off(&control);
	up.used = up.from = 0;
}

static int blocked(long answer) { return answer == AGAIN || answer == INTR; }

/* Write what is left of a piece. A program that does not read any more gets no more, and that is no error. */
static void write_up(void) {
	long bytes = up.pipe < 0 ? up.used - up.from : call(WRITE, up.pipe, (long)(up.piece + up.from), up.used - up.from, 0, 0);
	if (blocked(bytes))
		return;
	up.from += bytes < 0 ? up.used - up.from : bytes;
	if (up.from == up.used)
		up.from = up.used = 0;
}

/* A piece's length, by as many bytes as have come. */
static void read_head(void) {
	long bytes = call(READ, 0, (long)(head + head_bytes), sizeof head - head_bytes, 0, 0);
	if (blocked(bytes))
		return;
	if (bytes <= 0) {
		hang_up();
		return;
	}
	head_bytes += bytes;
	if (head_bytes < (long)sizeof head)
		return;
	head_bytes = 0;
	left = (long)head[0] << 24 | head[1] << 16 | head[2] << 8 | head[3];
	if (!left)
		shut_off(&data);
}

static void read_up(int incoming) {
	if (incoming && data >= 0 && !left) {
		read_head();
		return;
	}
	long most = incoming && data >= 0 && left < PIECE ? left : PIECE;
	long bytes = call(READ, 0, (long)up.piece, most, 0, 0);
	if (blocked(bytes))
		return;
	if (bytes <= 0) {
		hang_up();
		return;
	}
	up.pipe = incoming && data >= 0 ? data : control;
	up.used = bytes;
	if (up.pipe == data)
		left -= bytes;
	write_up();
}

static void write_down(void) {
	long bytes = call(WRITE, 1, (long)(down.piece + down.from), down.used - down.from, 0, 0);
	if (blocked(bytes))
		return;
	if (bytes < 0) {
		hang_up();
		shut_off(&text);
		bytes = down.used - down.from;
	}
	down.from += bytes;
	if (down.from == down.used)
		down.from = down.used = 0;
}

/* Answers 0 if there was nothing now. */
static int read_down(int *descriptor, char tag) {
	long bytes = call(READ, *descriptor, (long)(down.piece + HEAD), PIECE, 0, 0);
	if (blocked(bytes))
		return 0;
	if (bytes <= 0) {
		shut_off(descriptor);
		return 1;
	}
	down.piece[0] = tag;
	for (int i = 0; i < 4; i++)
		down.piece[1 + i] = (char)(bytes >> (24 - 8 * i));
	down.used = HEAD + bytes;
	write_down();
	return 1;
}

/* What is in the pipes when the program has ended is all; others may have them open for ever. */
static void finish(int incoming) {
	while (!incoming && !down.used && ((text >= 0 && read_down(&text, TEXT)) || (data >= 0 && read_down(&data, DATA))))
		;
	if (!down.used)
		leave((int)(status & 127 ? 128 + (status & 127) : status >> 8 & 255));
}

static void take_signals(void) {
	int told[32];
	while (call(READ, children, (long)told, sizeof told, 0, 0) > 0)
		if (told[0] != SIGCHLD && !ended && call(KILL, -program, told[0], 0, 0, 0) < 0)
			call(KILL, program, told[0], 0, 0, 0);
	int how = 0;
	if (!ended && call(WAIT4, program, (long)&how, NOHANG, 0, 0) == program) {
		status = how;
		ended = 1;
	}
}

/* In the new process. */
static void become(char **words, char **environment, int incoming, const int *third, const int *fourth, const int *stdout) {
	long nothing = open_at("/dev/null", RDWR), ends[3] = {third[!incoming], fourth[0], stdout[1]};
	call(SETSID, 0, 0, 0, 0, 0);
	for (int i = 0; i < 3; i++)
		ends[i] = ends[i] < 0 ? -1 : call(FCNTL, ends[i], DUP_CLOEXEC, FEEDS, 0, 0);
	put(nothing, 0);
	put(ends[0], 3);
	put(ends[1], 4);
	if (!incoming)
		put(ends[2], 1);
	default_signals();
	run(words, environment, environment);
}

static int made(int *both) { return call(PIPE2, (long)both, CLOEXEC, 0, 0, 0) >= 0; }

static int keep_end(const int *both, int mine) {
	shut(both[!mine]);
	call(FCNTL, both[mine], SET_FLAGS, NONBLOCK, 0, 0);
	return both[mine];
}

static void start(char **words, char **environment, int incoming) {
	int third[2], fourth[2], stdout[2] = {-1, -1};
	word held = 1UL << (SIGTERM - 1) | 1UL << (SIGHUP - 1) | 1UL << (SIGINT - 1) | 1UL << (SIGPIPE - 1) | 1UL << (SIGCHLD - 1);
	default_signals();
	call(SIGPROCMASK, BLOCK, (long)&held, 0, 8, 0);
	held &= ~(1UL << (SIGPIPE - 1));
	children = (int)call(SIGNALFD, -1, (long)&held, 8, CLOEXEC | NONBLOCK, 0);
	if (children < 0 || !made(third) || !made(fourth) || (!incoming && !made(stdout)))
		leave(CANNOT);
	program = call(CLONE, SIGCHLD, 0, 0, 0, 0);
	if (program < 0)
		leave(CANNOT);
	if (program == 0)
		become(words, environment, incoming, third, fourth, stdout);
	data = keep_end(third, incoming);
	control = keep_end(fourth, 1);
	if (!incoming) {
		text = keep_end(stdout, 0);
		call(FCNTL, 1, SET_FLAGS, WRONLY | NONBLOCK, 0, 0);
	}
}

void run_piped(char **words, char **environment) {
	int incoming = same(words[0], "in");
	if (!incoming && !same(words[0], "out"))
		leave(CALLED_WRONGLY);
	start(words + 1, environment, incoming);
	for (;;) {
		struct polled polled[] = {
		    {children, READABLE, 0},
		    {over || up.used ? -1 : 0, READABLE, 0},
		    {up.used ? up.pipe : -1, WRITABLE, 0},
		    {incoming || (over && !down.used) ? -1 : 1, down.used ? WRITABLE : 0, 0},
		    {incoming || down.used ? -1 : data, READABLE, 0},
		    {down.used ? -1 : text, READABLE, 0},
		};
		call(PPOLL, (long)polled, sizeof polled / sizeof *polled, 0, 0, 8);
		if (polled[0].found)
			take_signals();
		if (up.used && polled[2].found)
			write_up();
		else if (!up.used && polled[1].found)
			read_up(incoming);
		if (!incoming && !over && !down.used && polled[3].found & BROKEN)
			hang_up();
		if (down.used && polled[3].found)
			write_down();
		if (!down.used && polled[5].found)
			read_down(&text, TEXT);
		if (!down.used && !incoming && data >= 0 && polled[4].found)
			read_down(&data, DATA);
		if (ended)
			finish(incoming);
	}
}
