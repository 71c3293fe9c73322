/* The relay's journals: those that are known, the queue of those that may have something to be sent, and the sending. */

#include "relay.h"

enum { JOURNALS = 65536, CHAINS = 8192, RENAMES = 16 };

int behind;
long most = 1L << 62;
static struct store journals; /* the first is none */
static int count = 1, chains[CHAINS], unused, first, last;
static struct { char was[ID_BYTES], is[ID_BYTES]; } renames[RENAMES];
static long renamed;

struct journal *journal(int number) { return (struct journal *)journals.bytes + number; }

static unsigned chain_of(const char *name) {
	unsigned hash = 5381;
	while (*name)
		hash = hash * 33 + (unsigned char)*name++;
	return hash % CHAINS;
}

int find(const char *name) {
	int found = chains[chain_of(name)];
	while (found && !same(journal(found)->name, name))
		found = journal(found)->next;
	return found;
}

/* 0 when there are too many: those are not sent. */
int find_or_add(const char *name) {
	int found = find(name);
	if (found)
		return found;
	if ((found = unused)) {
		unused = journal(found)->next;
	} else {
		journals.used = count * sizeof(struct journal);
		if (count >= JOURNALS || !make_room(&journals, sizeof(struct journal)))
			return 0;
		found = count++;
	}
	struct journal *made = journal(found);
	memset(made, 0, sizeof *made);
	copy(made->name, name, length(name) + 1);
	int *chain = &chains[chain_of(name)];
	made->next = *chain;
	*chain = found;
	return found;
}

void queue(int number) {
	if (!number || journal(number)->queued)
		return;
	journal(number)->queued = 1;
	journal(number)->after = 0;
	if (first)
		journal(last)->after = number;
	else
		first = number;
	last = number;
}

static void release(int number) {
	journal(number)->next = unused;
	unused = number;
}

/* The first of the queue; 0 when there is none. */
int unqueue(void) {
	while (first) {
		int found = first;
		first = journal(found)->after;
		journal(found)->queued = 0;
		if (journal(found)->name[0])
			return found;
		release(found); /* it was forgotten meanwhile */
	}
	return 0;
}

/* One that was there at the beginning has been sent as far as it went then, or cannot be. */
static void reach(struct journal *found) {
	behind -= found->early;
	found->early = 0;
}

/* It is in no chain any more, and free as soon as it is in no queue. */
void forget(int number) {
	int *chain = &chains[chain_of(journal(number)->name)];
	while (*chain != number)
		chain = &journal(*chain)->next;
	*chain = journal(number)->next;
	reach(journal(number));
	journal(number)->name[0] = 0;
	if (!journal(number)->queued)
		release(number);
}

/* A request can change the name of a process, and so of its journals. */
void note_rename(char *text, long bytes) {
	if (bytes < 6 || bytes >= HEADER_BYTES || !starts(text, "name "))
		return;
	char line[HEADER_BYTES], *rest = line;
	copy(line, text, bytes - 1);
	line[bytes - 1] = 0;
	next_word(&rest);
	char *was = next_word(&rest), *is = next_word(&rest);
	if (!is_id(was) || !is_id(is))
		return;
	copy(renames[renamed % RENAMES].was, was, length(was) + 1);
	copy(renames[renamed++ % RENAMES].is, is, length(is) + 1);
}
/* If it had another name before, the mirror has it by that. */
static void take_over(struct journal *found) {
	char old[NAME_BYTES], *dot = found->name;
	while (*dot != '.')
		dot++;
	for (int i = 0; i < RENAMES; i++) {
		long bytes = length(renames[i].is);
		if (!bytes || bytes != dot - found->name || !starts(found->name, renames[i].is))
			continue;
		copy(old, renames[i].was, length(renames[i].was) + 1);
		copy(old + length(old), dot, length(dot) + 1);
		int before = find(old);
		long still = before ? open_file(p, old, RDONLY) : -1;
		shut(still);
		if (!before || !journal(before)->told || still >= 0)
			continue;
		found->sent = journal(before)->sent;
		found->told = 1;
		forget(before);
		struct line line;
		line.used = 0;
		add(&line, "name ");
		add(&line, old);
		add(&line, " ");
		add(&line, found->name);
		add(&line, "\n");
		send_line(&line);
	}
}
/* Skip what is a hole, or too much. */
static void skip(struct journal *found, long file, long size) {
	if (size - found->sent > most)
		found->sent = size - most;
	if (size - found->sent <= PIECE_BYTES)
		return;
	long data = call(LSEEK, file, found->sent, SEEK_TO_DATA, 0, 0);
	if (data == NO_DATA)
		data = size;
	if (data > found->sent)
		found->sent = data;
}

/* Send the next piece of a journal. Answers 0 if there is more of it. There is room for a header, and a little. */
int send_journal(struct journal *found, long spared) {
	long file = open_file(p, found->name, RDONLY), size = size_of(file);
	if (size < 0) {
		reach(found);
		return 1;
	}
	if (!found->told)
		take_over(found);
	long before = found->sent, bytes = room() - HEADER_BYTES - spared;
	skip(found, file, size);
	if (bytes > size - found->sent)
		bytes = size - found->sent;
	if (bytes > PIECE_BYTES)
		bytes = PIECE_BYTES;
	if (bytes > 0 || !found->told || found->sent != before) {
		long header = used;
		send_header(found->name, found->sent, 0);
		long read = bytes > 0 ? call(PREAD, file, (long)(outgoing + used), bytes, found->sent, 0) : 0;
		bytes = read > 0 ? read : 0;
		used = header;
		send_header(found->name, found->sent, bytes);
		used += bytes;
		found->sent += bytes;
		found->told = 1;
	}
	shut(file);
	if (found->early && found->sent >= found->goal)
		reach(found);
	return found->sent >= size || bytes <= 0;
}
