/*
 * The words that are written and compared, and offsets in random order: the same as in pattern.rs
 * and order.rs.
 */
#ifndef DATA_H
#define DATA_H
#include "phase.h"

#define WORDS_PER_TAG 512

static uint64_t mixed(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t word(const struct phase *phase, uint64_t offset, uint64_t index)
{
    uint64_t part = (uint64_t)phase->part, tag = index % WORDS_PER_TAG == 0;
    switch (phase->pattern) {
    case OLD:
        return index % 2 ? 8 * index : part << 32 | (uint32_t)phase->stamp;
    case OLD_OFFSET:
        return index % 2 ? offset + 8 * index : part << 32 | (uint32_t)phase->stamp;
    case NEW_OFFSET:
        if (tag)
            return (uint32_t)((uint32_t)offset * (uint32_t)(1 + index / WORDS_PER_TAG)) | part << 32;
        return part << 32 | (phase->stamp + index);
    case NEW:
        return part << 32 | (phase->stamp + index);
    case RANDOM:
        return mixed(mixed(phase->stamp ^ part << 32 ^ offset << 8) + index);
    case INCOMPRESSIBLE:
        if (!tag)
            return mixed(mixed(phase->stamp ^ part << 32) + index);
        break;
    case OWN:
        if (!tag)
            return (8 * index) ^ part << 48 ^ 0x6921747375676d75u;
    }
    return (offset + 8 * index) ^ part << 48 ^ 0x7473756d75676921u;
}

/* Words that follow from the offset, so that data in the wrong place is seen, are set for each
 * transfer: one in 4 KiB, which costs next to nothing. */
static uint64_t stride(const struct phase *phase)
{
    switch (phase->pattern) {
    case OLD:
    case NEW:
        return 0;
    case OLD_OFFSET:
    case RANDOM:
        return 1;
    default:
        return WORDS_PER_TAG;
    }
}

static void fill(const struct phase *phase, uint64_t *buffer, uint64_t offset, uint64_t step)
{
    uint64_t index;
    for (index = 0; step && index < phase->transfer / 8; index += step)
        buffer[index] = word(phase, offset, index);
}

static void compare(const struct phase *phase, const uint64_t *buffer, uint64_t offset,
                    struct answer *answer)
{
    uint64_t index;
    for (index = 0; index < phase->transfer / 8; index++)
        if (buffer[index] != word(phase, offset, index) && answer->errors++ == 0)
            answer->wrong_at = offset + 8 * index;
}

/* Offsets of a part in random order, as IOR shuffles them, by the C library's generator. */
static uint64_t *shuffled(const struct phase *phase, uint64_t *count)
{
    uint64_t size = phase->block, transfers, index, kept = 0, *offsets;
    unsigned seed = phase->seed;
    if (phase->order == RANDOM_IN_FILE)
        size *= phase->segments;
    if (!phase->has_own_files)
        size *= phase->ranks;
    else if (phase->order == RANDOM_IN_BLOCK)
        seed += phase->part;
    transfers = size / phase->transfer;
    offsets = allocate(transfers * sizeof *offsets);
    srandom(seed);
    for (index = 0; index < transfers; index++)
        if (phase->has_own_files || (int)(random() % phase->ranks) == phase->part)
            offsets[kept++] = index * phase->transfer;
    for (index = 0; index < kept; index++) {
        uint64_t other = random() % kept, value = offsets[other];
        offsets[other] = offsets[index];
        offsets[index] = value;
    }
    *count = kept;
    return offsets;
}

#endif
