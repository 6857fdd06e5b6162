/* Random operations on a file system, compared with a reference model: shared code of both runners. */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#define MOUNTS_MAX 8

/* The mounts of one file system, in which each operation picks one. */
extern const char *mounts[MOUNTS_MAX];
extern int mount_count;

/* Returns the next random number of the seed, complete or below a bound (which is not 0). */
uint64_t random_bits(void);
uint64_t below(uint64_t bound);

/* Returns true with a probability of one in `chances`. */
int one_in(uint64_t chances);

/* Begins an operation: keeps its description for the history that is shown when a check fails. */
void begin(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints the error and the history, and ends the program with 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails unless a call with the result `result` had the expected error (0 = none). */
void expect(long result, int error, const char *what);

void run_file(uint64_t operations);
void run_tree(uint64_t operations);

#endif
