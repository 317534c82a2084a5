//! The work of a call grows with the prompt, not with its square nor with the tree.

use super::*;

#[test]
fn the_longest_prompt_is_found_in_ten_thousand_nodes_at_a_glance() {
    const LENGTH: usize = 262_144;
    const STEP: usize = 4096;
    let pages = LENGTH / PAGE_TOKENS;
    let mut cache = PrefixCache::new(LENGTH / STEP, 0);
    let mut pool = KvPool::new(pages + 10_000);
    let long: Vec<u32> = (0..LENGTH).map(|position| (position / 7) as u32).collect();
    let table = pool.reserve(LENGTH).expect("pages are free");
    for end in (STEP..=LENGTH).step_by(STEP) {
        cache.insert(
            None,
            &long[..end],
            &table.pages()[..end / PAGE_TOKENS],
            &mut pool,
        );
        let reservation = cache.reserve_snapshot().expect("a place");
        assert!(cache.attach(None, &long[..end], reservation));
    }
    // Branches everywhere: most of them at the root, the others behind every eighth page of the prompt.
    for branch in 0..10_000 {
        let depth = match branch % 8 {
            0 => branch % pages,
            _ => 0,
        };
        let mut tokens = long[..depth * PAGE_TOKENS].to_vec();
        tokens.extend([vec![500_000 + branch as u32], vec![0; PAGE_TOKENS - 1]].concat());
        let own = pool.reserve(PAGE_TOKENS).expect("a page is free");
        let mut all = table.pages()[..depth].to_vec();
        all.extend(own.pages());
        assert_eq!(cache.insert(None, &tokens, &all, &mut pool), 1);
        pool.release(own);
    }
    pool.release(table);
    let nodes = cache.tree.nodes().count();
    assert!(nodes > 10_000, "{nodes} nodes");
    let mut prompt = long;
    prompt.push(0);
    cache.tree.visits.set(0);
    let began = std::time::Instant::now();
    let hit = cache.lookup(None, &prompt).hit.expect("a hit");
    let (visits, took) = (cache.tree.visits.get(), began.elapsed());
    assert_eq!((hit.length, hit.pages.len()), (LENGTH, pages));
    cache.unpin(hit.lease);
    // 576 nodes lie on the way, most with two or three children; the root has 8,750.
    println!("{visits} visits, {took:?}");
    assert!(visits < 6_000, "{visits} visits in {took:?}");
    cache.tree.visits.set(0);
    assert_eq!(cache.evict_pages(&mut pool, 1000), 1000);
    let visits = cache.tree.visits.get();
    assert!(visits < 40_000, "{visits} visits for 1000 pages");
    cache.audit().expect("a sound cache");
    cache.flush(&mut pool);
    pool.audit([]).expect("nothing leaks");
}
