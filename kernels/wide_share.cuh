// Which part of a product a cluster computes.
//
// A unit is one slice of K of one weight tile and one row tile. Units are dealt to the clusters in
// turn: what runs at the same time shares weights and rows in the second-level cache. Where `split`
// is set, every cluster takes an equal share of the columns of all weight tiles instead, for one
// row tile, and a unit may begin in one cluster and end in the next; a share is at least as long as
// a unit, so no unit has three parts.
#pragma once
#include "wide_params.cuh"

// A cluster's part of a unit: chunks begin..end of the columns.
struct WidePiece {
    int tile;
    int row_tile;
    int slice;
    int begin;
    int end;
    bool starts_unit;
    bool ends_unit;
};

struct WideShare {
    const WideParams& p;
    int cluster;
    int pieces;
    // Where `split`: columns of all tiles, in chunks, and the last unit.
    int begin;
    int end;
    int last;

    __device__ WideShare(const WideParams& p, int cluster) : p(p), cluster(cluster) {
        if (p.split) {
            const uint32_t columns = p.tiles * p.chunks, share = cluster / p.row_tiles;
            begin = columns * share / p.shares;
            end = columns * (share + 1) / p.shares;
            last = unit_of(end - 1);
            pieces = last - unit_of(begin) + 1;
        } else {
            const int units = p.tiles * p.slices * p.row_tiles, shares = p.shares;
            pieces = (units - cluster + shares - 1) / shares;
        }
    }

    // The unit that holds a column.
    __device__ int unit_of(uint32_t column) const {
        int slice = 0;
        for (uint32_t s = 1; s < p.slices; s++) slice += p.cuts[s] <= column % p.chunks;
        return column / p.chunks * p.slices + slice;
    }

    // Split units come from the last to the first, so that a cluster hands over what the next one
    // waits for at its start, and waits for what it takes over at its end.
    __device__ WidePiece piece(int number) const {
        WidePiece piece;
        piece.starts_unit = piece.ends_unit = true;
        if (p.split) {
            const int unit = last - number;
            piece.row_tile = cluster % p.row_tiles;
            piece.tile = unit / p.slices;
            piece.slice = unit % p.slices;
        } else {
            const int unit = cluster + number * p.shares, pair = unit / p.row_tiles;
            piece.row_tile = unit % p.row_tiles;
            piece.tile = pair % p.tiles;
            piece.slice = pair / p.tiles;
        }
        piece.begin = p.cuts[piece.slice];
        piece.end = p.cuts[piece.slice + 1];
        if (p.split) {
            const int origin = piece.tile * p.chunks;
            piece.starts_unit = origin + piece.begin >= begin;
            piece.ends_unit = origin + piece.end <= end;
            piece.begin = max(piece.begin, begin - origin);
            piece.end = min(piece.end, end - origin);
        }
        return piece;
    }
};

// Walks over the chunks of a share in the order of their multiplication.
struct WideCursor {
    const WideShare& share;
    int number = 0;
    WidePiece piece;

    __device__ explicit WideCursor(const WideShare& share) : share(share) {
        piece = share.piece(0);
        skip_empty();
    }

    __device__ bool at_end() const { return number == share.pieces; }

    __device__ void next() {
        piece.begin++;
        skip_empty();
    }

    __device__ void skip_empty() {
        while (piece.begin == piece.end && ++number < share.pieces) piece = share.piece(number);
    }
};
