// Which part of a product a cluster computes.
//
// A unit is one slice of K of one tile. Where `split` is set every cluster takes an equal share of
// all columns of all tiles, counted in chunks, and a unit may begin in one cluster and end in the
// next; a share is at least as long as a unit, so no unit has three parts. Without it a share is a
// run of whole units.
#pragma once
#include "wide_params.cuh"

// A cluster's part of a unit: chunks begin..end of the tile's columns.
struct WidePiece {
    int tile;
    int slice;
    int begin;
    int end;
    bool starts_unit;
    bool ends_unit;
};

struct WideShare {
    int begin;  // in chunks over all tiles
    int end;
    int first;  // units first..=last
    int last;

    __device__ static int unit_begin(const WideParams& p, int unit) {
        return unit / p.slices * p.chunks + p.cuts[unit % p.slices];
    }

    __device__ static int unit_of(const WideParams& p, uint32_t column) {
        int slice = 0;
        for (uint32_t s = 1; s < p.slices; s++) slice += p.cuts[s] <= column % p.chunks;
        return column / p.chunks * p.slices + slice;
    }

    __device__ WideShare(const WideParams& p, uint32_t share) {
        if (p.split) {
            const uint32_t columns = p.tiles * p.chunks;
            begin = columns * share / p.shares;
            end = columns * (share + 1) / p.shares;
            first = unit_of(p, begin);
            last = unit_of(p, end - 1);
        } else {
            const uint32_t units = p.tiles * p.slices;
            first = units * share / p.shares;
            last = static_cast<int>(units * (share + 1) / p.shares) - 1;
            begin = unit_begin(p, first);
            end = unit_begin(p, last + 1);
        }
    }

    __device__ WidePiece piece(const WideParams& p, int unit) const {
        const int from = unit_begin(p, unit), to = unit_begin(p, unit + 1);
        WidePiece piece;
        piece.tile = unit / p.slices;
        piece.slice = unit % p.slices;
        const int origin = piece.tile * p.chunks;
        piece.begin = max(from, begin) - origin;
        piece.end = min(to, end) - origin;
        piece.starts_unit = from >= begin;
        piece.ends_unit = to <= end;
        return piece;
    }
};

// Walks over the chunks of a share: units from the last to the first, so that a cluster hands over
// what the next one waits for at its start, and waits for what it takes over at its end.
struct WideCursor {
    const WideParams& p;
    const WideShare& share;
    int unit;
    WidePiece piece;

    __device__ WideCursor(const WideParams& p, const WideShare& share)
        : p(p), share(share), unit(share.last), piece(share.piece(p, unit)) {
        skip_empty();
    }

    // There must be a chunk left.
    __device__ void next() {
        piece.begin++;
        skip_empty();
    }

    __device__ void skip_empty() {
        while (piece.begin == piece.end && unit > share.first) piece = share.piece(p, --unit);
    }
};
