/* The relay's output: what is outgoing, and the order in which it gets there. */

#include "relay.h"

enum { BACKLOG = 4 << 20, NOTICE_MS = 1000, MOST_UNTOLD = 32 };

char outgoing[OUTGOING];
long used;
int exits, begun, more;
long exits_sent, exits_goal;
volatile long *given;
long untold;
static long written, untold_since;
static int synced;

long room(void) { return OUTGOING - used; }

void send_line(const struct line *line) {
	copy(outgoing + used, line->text, line->used);
	used += line->used;
}

void send_words(const char *verb, const char *name, long number) {
	struct line line;
	line.used = 0;
	add(&line, verb);
	if (*name) {
		add(&line, " ");
		add(&line, name);
	}
	if (number >= 0) {
		add(&line, " ");
		add_number(&line, number);
	}
	add(&line, "\n");
	send_line(&line);
}

void flush(void) {
	while (written < used) {
		long bytes = call(WRITE, 1, (long)(outgoing + written), used - written, 0, 0);
		if (bytes == INTR)
			continue;
		if (bytes == AGAIN)
			return;
		if (bytes < 0)
			leave(0); /* the connection is gone */
		written += bytes;
	}
	used = written = 0;
}

/* The only place where anything is waited for, and where a signal can end this. */
int await(struct polled *polled, long descriptors, long milliseconds) {
	long time[2] = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	word none = 0;
	return (int)call(PPOLL, (long)polled, descriptors, milliseconds < 0 ? 0 : (long)time, (long)&none, 8);
}

void flush_all(void) {
	while (flush(), used) {
		struct polled polled = {1, WRITABLE, 0};
		await(&polled, 1, -1);
	}
}

static long now_ms(void) {
	long time[2] = {0, 0};
	call(CLOCK_GETTIME, MONOTONIC, (long)time, 0, 0, 0);
	return time[0] * 1000 + time[1] / 1000000;
}

/* The line before so many bytes, whose number is put into it when they have been read: its digits are always five. */
void send_header(const char *name, long offset, long bytes) {
	struct line line;
	line.used = 0;
	add(&line, "data ");
	add(&line, name);
	add(&line, " ");
	add_number(&line, offset);
	add(&line, " ");
	for (long digit = 10000; digit; digit /= 10)
		add_number(&line, bytes / digit % 10);
	add(&line, "\n");
	send_line(&line);
}
/* How far the journals of the process of the present line have to be sent before that is; -1 for those that are not there. */
static long goals[3], goals_at = -1;

static void set_goals(char (*names)[NAME_BYTES], int ended) {
	for (int i = 0; i < 3; i++) {
		long file = open_file(p, names[i], RDONLY);
		goals[i] = size_of(file);
		if (goals[i] > 0 && !ended)
			goals[i] = 0;
		shut(file);
	}
}

/* Send what has to come before a line of answers. Answers 0 if there was no room for all. */
static int settle(const char *line, const char *end, long offset) {
	static const char *const suffixes[] = {".stdout", ".stderr", ".data"};
	char names[3][NAME_BYTES];
	long id = 0;
	while (line + id < end && line[id] != ' ')
		id++;
	if (line + id + 1 >= end || id >= ID_BYTES)
		return 1;
	for (int i = 0; i < 3; i++) {
		copy(names[i], line, id);
		copy(names[i] + id, suffixes[i], length(suffixes[i]) + 1);
	}
	char word = line[id + 1];
	if (!is_name(names[0], 1) || word == '<' || word == '~')
		return 1;
	if (goals_at != offset)
		set_goals(names, word != '+');
	goals_at = offset;
	for (int i = 0; i < 3; i++) {
		int found = goals[i] < 0 ? 0 : find_or_add(names[i]);
		while (found && (!journal(found)->told || journal(found)->sent < goals[i])) {
			if (room() <= EXITS_BYTES + 4 * HEADER_BYTES)
				return 0;
			if (send_journal(journal(found), EXITS_BYTES + 2 * HEADER_BYTES) && journal(found)->sent < goals[i])
				break; /* the code inside has made it shorter */
		}
	}
	return 1;
}

/* The end of the last line in a piece of answers before which all was sent; there may be none. */
static long settled(const char *piece, long bytes) {
	long done = 0;
	for (long i = 0; i < bytes; i++)
		if (piece[i] == '\n') {
			if (!settle(piece + done, piece + i, exits_sent + done)) {
				more = 1;
				return done;
			}
			done = i + 1;
		}
	return done || bytes < EXITS_BYTES ? done : bytes; /* no line is that long */
}

static void send_exits(void) {
	static char piece[EXITS_BYTES];
	long size = size_of(exits);
	if (size < exits_sent) {
		send_words("cut", "", -1);
		exits_sent = exits_goal = 0;
		goals_at = -1;
	}
	if (size - exits_sent > BACKLOG)
		exits_sent = size - BACKLOG;
	while (exits_sent < size && !more) {
		if (room() <= EXITS_BYTES + 2 * HEADER_BYTES) {
			more = 1;
			return;
		}
		long bytes = call(PREAD, exits, (long)piece, sizeof piece, exits_sent, 0);
		long done = bytes > 0 ? settled(piece, bytes) : 0;
		if (!done)
			return;
		send_header("exits", exits_sent, done);
		copy(outgoing + used, piece, done);
		used += done;
		exits_sent += done;
	}
}

void note_given(void) {
	if (!untold++)
		untold_since = now_ms();
}

/* Fill what is outgoing: answers, with what has to come before them, and then a piece of each journal in turn. */
void produce(void) {
	more = used != 0;
	if (!begun || used)
		return;
	send_exits();
	int all = !more;
	int number;
	while (room() > PIECE_BYTES / 2 && (number = unqueue())) {
		if (!send_journal(journal(number), 0))
			queue(number);
		else if (!journal(number)->told)
			forget(number); /* there is no such file */
	}
	more |= room() <= PIECE_BYTES / 2;
	if (!synced && !behind && (all || exits_sent >= exits_goal)) {
		synced = 1;
		send_words("synced", "", -1);
	}
	if (untold && (used || untold >= MOST_UNTOLD || now_ms() - untold_since >= NOTICE_MS)) {
		send_words("took", "", *given);
		untold = 0;
	}
}
