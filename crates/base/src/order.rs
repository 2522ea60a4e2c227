//! Sorting for the preloaded library: a twentieth of the code of the standard library's sorts, of
//! which there is a copy for each type. Lists are short there, and sorted seldom.

/// Sorts in place: nothing is before what it follows. A heap sort: O(n log n) for every input,
/// allocates nothing; the order of equals is not kept.
pub fn sort_by<T>(items: &mut [T], is_before: impl Fn(&T, &T) -> bool) {
    let mut unordered = items.len() / 2;
    let mut end = items.len();
    while end > 1 {
        if unordered > 0 {
            // First everything becomes a heap, from its last parent to its first: no child comes
            // after its parent.
            unordered -= 1;
        } else {
            // Then the last of all goes to the end, again and again.
            end -= 1;
            items.swap(0, end);
        }
        let mut parent = unordered;
        loop {
            let mut child = 2 * parent + 1;
            if child >= end {
                break;
            }
            if child + 1 < end && is_before(&items[child], &items[child + 1]) {
                child += 1;
            }
            if !is_before(&items[parent], &items[child]) {
                break;
            }
            items.swap(parent, child);
            parent = child;
        }
    }
}

/// As [`sort_by`], from the least to the greatest.
pub fn sort<T: Ord>(items: &mut [T]) {
    sort_by(items, |a, b| a < b);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every list of up to seven of three kinds, and some long ones.
    #[test]
    fn sorts_as_the_standard_library_does() {
        for length in 0..=7u32 {
            for number in 0..3u32.pow(length) {
                let list: Vec<u32> = (0..length).map(|at| number / 3u32.pow(at) % 3).collect();
                check(list);
            }
        }
        for length in [100, 1000] {
            check((0..length).map(|at| at * 7919 % 1009).collect());
            check((0..length).collect());
            check((0..length).rev().collect());
        }
    }

    fn check(list: Vec<u32>) {
        let mut expected = list.clone();
        expected.sort_unstable();
        let mut sorted = list.clone();
        sort(&mut sorted);
        assert_eq!(sorted, expected, "{list:?}");
        expected.reverse();
        let mut sorted = list.clone();
        sort_by(&mut sorted, |a, b| a > b);
        assert_eq!(sorted, expected, "{list:?}, backwards");
    }
}
