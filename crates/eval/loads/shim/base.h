/*
 * Ends all ranks when something fails, and what all parts need.
 */
#ifndef BASE_H
#define BASE_H
#include <errno.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 4096

static int world_rank;
static MPI_Comm group = MPI_COMM_NULL;
static double to_rank_0; /* What has to be added to this node's clock. */

static void die(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "ior: rank %d: %s\n", world_rank, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void check(int code, const char *what, const char *file)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    die("%s %s: %s", what, file, text);
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, bytes ? bytes : ALIGNMENT))
        die("cannot allocate %zu bytes", bytes);
    return memory;
}

#endif
