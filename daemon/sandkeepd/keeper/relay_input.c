/* The relay's input: what the daemon says. */

#include "relay.h"

enum { INCOMING = 65536, PIPE_BYTES = 4096 };

int fifo, waiting;
static char incoming[INCOMING];
static long have, at; /* bytes in `incoming`, and how many of them were taken */

static void break_off(void) {
	say("what comes is not from a daemon of this version\n");
	leave(CALLED_WRONGLY);
}

static void tell_input(const char *name) {
	if (!is_name(name, 0))
		return;
	long file = open_file(in, name, RDONLY), size = size_of(file);
	shut(file);
	if (size < 0)
		return;
	if (room() < HEADER_BYTES)
		flush_all();
	send_words("in", name, size);
}

static void count_early(const char *name) {
	int found = is_name(name, 1) ? find_or_add(name) : 0;
	if (!found)
		return;
	long file = open_file(p, name, RDONLY);
	journal(found)->goal = size_of(file);
	shut(file);
	if (journal(found)->told && journal(found)->sent >= journal(found)->goal)
		return;
	journal(found)->early = 1;
	behind++;
	queue(found);
}

static void begin_sending(void) {
	flush_all();
	send_words("hello 1", "", *given);
	read_names(in, tell_input);
	if (room() < HEADER_BYTES)
		flush_all();
	send_words("ready", "", -1);
	exits_goal = size_of(exits);
	read_names(p, count_early);
	begun = 1;
}

/* What is being put, and how much of it is to come. */
static struct {
	char name[NAME_BYTES];
	long file, offset, left;
	int failed;
} input;

static void begin_put(const char *name, long offset, long bytes) {
	copy(input.name, name, length(name) + 1);
	input.file = open_at(path_of(path, in, name, ""), WRONLY | CREAT | NONBLOCK | NOFOLLOW);
	input.offset = offset;
	input.left = bytes;
	input.failed = offset > size_of(input.file); /* what was to be before it had no room; or it is no file */
}

static void put_some(void) {
	long bytes = have - at < input.left ? have - at : input.left;
	for (long done = 0, wrote; done < bytes && !input.failed; done += wrote) {
		wrote = call(PWRITE, input.file, (long)(incoming + at + done), bytes - done, input.offset, 0);
		if (wrote <= 0)
			input.failed = 1, wrote = 0;
		input.offset += wrote;
	}
	at += bytes;
	input.left -= bytes;
}

static void end_put(void) {
	long size = size_of(input.file);
	shut(input.file);
	if (input.failed)
		send_words("lack", input.name, size > 0 ? size : 0);
	input.name[0] = 0;
}

/* Give the keeper a request, if it has no earlier or equal number. Answers 0 if there is no room. */
static int give(long number, char *text, long bytes) {
	if (number <= *given)
		return 1;
	long wrote = call(WRITE, fifo, (long)text, bytes, 0, 0);
	if (wrote == AGAIN || wrote == INTR)
		return 0;
	*given = number; /* whole, as no longer ones are taken than are written at once */
	if (wrote != bytes)
		leave(CANNOT);
	note_given();
	note_rename(text, bytes);
	return 1;
}

static void drop(const char *name) {
	int found = find(name);
	call(UNLINKAT, HERE, (long)path_of(path, p, name, ""), 0, 0, 0);
	if (found)
		forget(found);
	send_words("gone", name, -1);
}

static void punch(const char *name, long bytes) {
	long file = same(name, "exits") ? open_at(path_of(path, p, "../exits", ""), WRONLY | NOFOLLOW) : open_file(p, name, WRONLY);
	long size = size_of(file);
	call(FALLOCATE, file, PUNCH, 0, bytes < size ? bytes : size, 0);
	shut(file);
}

static void know(const char *name, long size) {
	int found;
	if (same(name, "exits"))
		exits_sent = size;
	else if (is_name(name, 1) && (found = find_or_add(name))) {
		journal(found)->sent = size;
		journal(found)->told = 1;
	}
}

/* One line, in its own place; `begin` is in `incoming`. Answers 0 when it has to wait. */
static int take_line(char *line, char *after) {
	char *rest = line, *verb = next_word(&rest), *name = next_word(&rest);
	long number = number_of(name), offset = number_of(next_word(&rest)), bytes = number_of(rest);
	if (same(verb, "ask")) {
		if (offset < 1 || offset > PIPE_BYTES)
			break_off();
		if (incoming + have - after < offset || (waiting = !give(number, after, offset)))
			return 0;
		after += offset;
	} else if (same(verb, "begin")) {
		most = number;
		begin_sending();
	} else if (same(verb, "have")) {
		know(name, offset);
	} else if (same(verb, "put") && is_name(name, 0)) {
		begin_put(name, offset, bytes);
	} else if (same(verb, "rm") && is_name(name, 0)) {
		call(UNLINKAT, HERE, (long)path_of(path, in, name, ""), 0, 0, 0);
	} else if (same(verb, "drop") && is_name(name, 1)) {
		drop(name);
	} else if (same(verb, "punch") && (same(name, "exits") || is_name(name, 1))) {
		punch(name, offset);
	} else {
		break_off();
	}
	at = after - incoming;
	return 1;
}

void take_lines(void) {
	waiting = 0;
	while (at < have || input.name[0]) {
		if (room() < 2 * HEADER_BYTES)
			break;
		if (input.name[0]) {
			put_some();
			if (input.left)
				break;
			end_put();
			continue;
		}
		char header[HEADER_BYTES];
		long bytes = 0;
		while (at + bytes < have && incoming[at + bytes] != '\n' && bytes < HEADER_BYTES)
			bytes++;
		if (bytes == HEADER_BYTES)
			break_off();
		if (at + bytes == have)
			break;
		copy(header, incoming + at, bytes);
		header[bytes] = 0;
		if (!take_line(header, incoming + at + bytes + 1))
			break;
	}
	copy(incoming, incoming + at, have - at);
	have -= at;
	at = 0;
}

void read_some(void) {
	long bytes = call(READ, 0, (long)(incoming + have), sizeof incoming - have, 0, 0);
	if (bytes == INTR || bytes == AGAIN)
		return;
	if (bytes <= 0)
		leave(0);
	have += bytes;
	take_lines();
}

int wants_input(void) { return have < INCOMING; }
