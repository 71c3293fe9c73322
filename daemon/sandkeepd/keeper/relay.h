/* The parts of the relay: see relay.c. */

#include "keeper.h"

enum { SUFFIX_BYTES = 8, NAME_BYTES = ID_BYTES + SUFFIX_BYTES, HEADER_BYTES = 256, PIECE_BYTES = 32768, EXITS_BYTES = 4096, OUTGOING = 65536 };

struct journal {
	char name[NAME_BYTES];
	char queued, told, early; /* in the queue; the mirror has it; was there at the beginning, and counts as `behind` */
	int next, after;          /* in its chain, or among those that are free; in the queue */
	long sent, goal;
};

extern char in[PATH_BYTES], p[PATH_BYTES], path[PATH_BYTES + NAME_BYTES];

/* relay_output.c */
extern char outgoing[OUTGOING];
extern long used; /* bytes of it */
extern int exits, begun, more; /* all that the mirror has is known; there is something to be sent */
extern long exits_sent, exits_goal;
extern volatile long *given;     /* the number of the last request that was given */
extern long untold;              /* requests that were given and not told of */
long room(void);
void send_line(const struct line *line);
void send_words(const char *verb, const char *name, long number);
void send_header(const char *name, long offset, long bytes);
void flush(void);
void flush_all(void);
int await(struct polled *polled, long descriptors, long milliseconds);
void note_given(void);
void produce(void);

/* relay_journals.c */
extern int behind; /* journals of which not all was sent that was there at the beginning */
extern long most;
struct journal *journal(int number);
int find(const char *name);
int find_or_add(const char *name);
void queue(int number);
int unqueue(void);
void forget(int number);
void note_rename(char *text, long bytes);
int send_journal(struct journal *found, long spared);

/* relay_input.c */
extern int fifo, waiting; /* for room in the FIFO */
int wants_input(void);
void read_some(void);
void take_lines(void);

/* The size of an open regular file; -1 for anything else. */
static long size_of(long file) {
	struct {
		char before[28];
		unsigned short mode, padding;
		long inode, size;
		char after[208];
	} found;
	if (file < 0 || call(STATX, file, (long)"", EMPTY_PATH, TYPE_AND_SIZE, (long)&found) < 0)
		return -1;
	return (found.mode & KIND) == REGULAR ? found.size : -1;
}

/* A regular file, whoever has put whatever in its place; -1 if it is none. */
static long open_file(const char *directory, const char *name, long flags) {
	long file = open_at(path_of(path, directory, name, ""), flags | NONBLOCK | NOFOLLOW);
	if (size_of(file) >= 0)
		return file;
	shut(file);
	return -1;
}

/* NAME is ID or ID.SUFFIX; a journal's has one of three suffixes. */
static int is_name(const char *name, int journal) {
	char id[ID_BYTES];
	long dot = 0;
	while (name[dot] && name[dot] != '.')
		dot++;
	if (!dot || dot >= ID_BYTES || name[0] == '-' || name[0] == '_')
		return 0;
	copy(id, name, dot);
	id[dot] = 0;
	name += dot;
	if (!is_id(id))
		return 0;
	return journal ? same(name, ".stdout") || same(name, ".stderr") || same(name, ".data")
	               : !*name || (length(name) <= SUFFIX_BYTES && is_id(name + 1));
}

static void read_names(const char *directory, void (*take)(const char *name)) {
	static char entries[8192] __attribute__((aligned(8)));
	long place = open_at(directory, RDONLY), bytes;
	while (place >= 0 && (bytes = call(GETDENTS, place, (long)entries, sizeof entries, 0, 0)) > 0)
		for (long entry = 0; entry < bytes; entry += *(unsigned short *)(entries + entry + 16))
			take(entries + entry + 19);
	shut(place);
}
