//! Intervals as their writer knows them: with the length of the prefix that owns each.

/// Addresses from `start` to the next interval's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub start: u64,
    /// What they lead to.
    pub group: u32,
    /// Bits of the prefix that owns them; none of those that only the default route has.
    pub owner: u8,
    /// It is one upper half, with prefixes longer than /64.
    pub deep: bool,
}

/// Cuts the interval of `intervals` in two that `start` is inside of, if there is one. They end before `end`.
pub(crate) fn cut(intervals: &mut Vec<Interval>, start: u64, end: Option<u64>) {
    if end.is_some_and(|end| start >= end) {
        return;
    }
    let at = intervals.partition_point(|interval| interval.start <= start);
    match at.checked_sub(1).and_then(|at| intervals.get(at)).copied() {
        Some(interval) if interval.start < start => {
            intervals.insert(at, Interval { start, deep: false, ..interval })
        }
        _ => {}
    }
}

/// Makes one of neighbours that lead to the same by prefixes of the same length: cutting makes two of them
/// again.
pub(crate) fn join(intervals: &mut Vec<Interval>) {
    intervals.dedup_by(|next, last| {
        !next.deep && !last.deep && (next.group, next.owner) == (last.group, last.owner)
    });
}
