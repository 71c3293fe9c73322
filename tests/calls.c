/* calls NAME:NUMBER[:ARGUMENT]... makes system calls and says of each what came: "NAME ERRNO", with 0 for success.
 *
 * An argument is a number, or text behind an s. A number of a call with an i before it is i386's, made by int 0x80. A child
 * that is made ends at once.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long by_i386(long number, const long *a)
{
#ifdef __x86_64__
    int answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"((int)number), "b"((int)a[0]), "c"((int)a[1]), "d"((int)a[2])
                     : "memory", "r8", "r9", "r10", "r11");
    if (answer < 0) {
        errno = -answer;
        return -1;
    }
    return answer;
#else
    errno = ENOSYS;
    return -1;
#endif
}

int main(int count, char **words)
{
    for (int at = 1; at < count; at++) {
        long arguments[6] = {0}, answer;
        char *rest = words[at], *name = strsep(&rest, ":"), *number = strsep(&rest, ":");
        pid_t self = getpid();
        for (int i = 0; i < 6 && rest; i++) {
            char *word = strsep(&rest, ":");
            arguments[i] = *word == 's' ? (long)(word + 1) : strtol(word, NULL, 0);
        }
        errno = 0;
        if (*number == 'i')
            answer = by_i386(strtol(number + 1, NULL, 0), arguments);
        else
            answer = syscall(strtol(number, NULL, 0), arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                             arguments[5]);
        if (getpid() != self)
            _exit(0);
        printf("%s %d\n", name, answer < 0 ? errno : 0);
        fflush(stdout);
    }
}
