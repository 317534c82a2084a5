//! Every chunk of every unit belongs to one cluster, and what is handed over is taken over.

use super::*;

const H200: Limits = Limits {
    multiprocessors: 132,
    shared_bytes: 228 << 10,
    warpgroups: true,
};

/// (outputs, columns, slices): of the 27B target and its drafter, of the tiny pair, awkward ones.
const PRODUCTS: [(usize, usize, usize); 14] = [
    (16480, 5120, 1),
    (14336, 5120, 1),
    (5120, 6144, 4),
    (34816, 5120, 1),
    (5120, 17408, 4),
    (248_320, 5120, 1),
    (6144, 5120, 1),
    (5120, 4096, 4),
    (5120, 25600, 1),
    (1030, 192, 1),
    (192, 384, 4),
    (192, 512, 4),
    (1, 16, 1),
    (100, 400, 4),
];

const ROWS: [usize; 13] = [17, 24, 32, 33, 48, 64, 96, 128, 192, 256, 384, 512, 2048];

/// `WideShare` of `kernels/wide_share.cuh`: pieces (tile, row tile, slice, begin, end).
fn pieces(p: &Division, cluster: u32) -> Vec<(u32, u32, u32, u32, u32)> {
    let cuts = |unit: u32| (p.cuts[unit as usize], p.cuts[unit as usize + 1]);
    if p.split == 0 {
        let units = p.tiles * p.slices * p.row_tiles;
        let mine = (cluster..units).step_by(p.shares as usize);
        return mine
            .map(|unit| {
                let pair = unit / p.row_tiles;
                let (begin, end) = cuts(pair / p.tiles);
                (
                    pair % p.tiles,
                    unit % p.row_tiles,
                    pair / p.tiles,
                    begin,
                    end,
                )
            })
            .collect();
    }
    let columns = p.tiles * p.chunks;
    let share = cluster / p.row_tiles;
    let (first, last) = (columns * share / p.shares, columns * (share + 1) / p.shares);
    let mut pieces = Vec::new();
    for unit in (0..p.tiles * p.slices).rev() {
        let (begin, end) = cuts(unit % p.slices);
        let origin = unit / p.slices * p.chunks;
        let (begin, end) = ((begin + origin).max(first), (end + origin).min(last));
        if begin < end {
            let (tile, slice) = (unit / p.slices, unit % p.slices);
            pieces.push((
                tile,
                cluster % p.row_tiles,
                slice,
                begin - origin,
                end - origin,
            ));
        }
    }
    pieces
}

#[test]
fn units_are_whole_or_in_two_parts_of_neighbours() {
    for (outputs, columns, slices) in PRODUCTS {
        for rows in ROWS {
            for tile in &TILES {
                for split in [false, true] {
                    let divided = tile.divide(rows, outputs, columns, slices, split, &H200);
                    if let Some((kernel, _)) = divided {
                        let what = format!(
                            "{outputs} x {columns}, {rows} rows, {} {:?}",
                            tile.name, kernel.division
                        );
                        check(&kernel, tile.cluster, &what);
                    }
                }
            }
        }
    }
}

fn check(kernel: &WideKernel, cluster_blocks: usize, what: &str) {
    let p = &kernel.division;
    let clusters = kernel.grid.blocks[0] / cluster_blocks as u32;
    assert!(clusters >= 1 && kernel.grid.blocks[0] <= 132, "{what}");
    let unit =
        |tile, row_tile, slice| ((tile * p.row_tiles + row_tile) * p.slices + slice) as usize;
    let mut parts = vec![Vec::new(); (p.tiles * p.row_tiles * p.slices) as usize];
    for cluster in 0..clusters {
        let pieces = pieces(p, cluster);
        assert!(!pieces.is_empty(), "{what}: cluster {cluster} is idle");
        for (number, &(tile, row_tile, slice, begin, end)) in pieces.iter().enumerate() {
            let last = number + 1 == pieces.len();
            parts[unit(tile, row_tile, slice)].push((begin, end, cluster, number == 0, last));
        }
    }
    for tile in 0..p.tiles {
        for row_tile in 0..p.row_tiles {
            for slice in 0..p.slices {
                let cuts = (p.cuts[slice as usize], p.cuts[slice as usize + 1]);
                let parts = &mut parts[unit(tile, row_tile, slice)];
                parts.sort_unstable();
                match parts[..] {
                    [(begin, end, ..)] => assert_eq!((begin, end), cuts, "{what}"),
                    [(begin, cut, giver, first, _), (from, end, taker, _, last)] => {
                        assert_eq!((begin, end, cut), (cuts.0, cuts.1, from), "{what}");
                        assert_eq!(taker, giver + p.row_tiles, "{what}");
                        assert!(first && last, "{what}: hand over first, take over last");
                    }
                    _ => panic!("{what}: unit in {} parts", parts.len()),
                }
            }
        }
    }
}

#[test]
fn slices_are_cut_as_in_the_small_kernel() {
    for (outputs, columns, slices) in PRODUCTS {
        let p = wide_plan(64, outputs, columns, slices, &H200).division;
        let blocks = columns.div_ceil(128);
        for slice in 0..=slices {
            let cut = (128 * (blocks * slice / slices)).min(columns);
            assert_eq!(
                p.cuts[slice] as usize,
                cut.div_ceil(64),
                "{outputs} x {columns}"
            );
        }
    }
}

#[test]
fn shapes_of_the_large_model_fill_the_gpu() {
    let blocks = |rows, (outputs, columns, slices)| {
        wide_plan(rows, outputs, columns, slices, &H200).grid.blocks[0]
    };
    for rows in [32, 64, 128, 256, 512] {
        for product in &PRODUCTS[..6] {
            assert!(blocks(rows, *product) >= 112, "{product:?}, {rows} rows");
        }
        for product in &PRODUCTS[6..9] {
            assert!(blocks(rows, *product) >= 80, "{product:?}, {rows} rows");
        }
    }
}
