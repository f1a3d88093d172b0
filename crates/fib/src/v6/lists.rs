//! Lists of the lower halves of addresses whose upper half has prefixes longer than /64.

/// The first address of each interval, and what it leads to.
#[derive(Debug)]
pub(crate) struct List {
    keys: Box<[u64]>,
    groups: Box<[u32]>,
}

impl List {
    /// The list of prefixes in the order of their addresses, shorter ones first; `group` is what the rest
    /// leads to. Each is its first and its last address.
    pub fn new(group: u32, prefixes: impl Iterator<Item = (u64, u64, u32)>) -> List {
        let mut list: Vec<(u64, u32)> = vec![(0, group)];
        // Those that the next address may be in, the shortest first.
        let mut around = vec![(u64::MAX, group)];
        for (first, last, group) in prefixes {
            leave(&mut around, &mut list, first);
            begin(&mut list, first, group);
            around.push((last, group));
        }
        leave(&mut around, &mut list, u64::MAX);
        let (keys, groups): (Vec<u64>, Vec<u32>) = list.into_iter().unzip();
        List { keys: keys.into(), groups: groups.into() }
    }

    /// What the lower half `key` leads to.
    pub fn lookup(&self, key: u64) -> u32 {
        let at = self.keys.partition_point(|start| *start <= key);
        at.checked_sub(1).and_then(|at| self.groups.get(at)).copied().unwrap_or(crate::NO_ROUTE)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

/// Prefixes that end before `first` are left for what is around them.
fn leave(around: &mut Vec<(u64, u32)>, list: &mut Vec<(u64, u32)>, first: u64) {
    while let Some(last) = around.last().map(|(last, _)| *last).filter(|last| *last < first) {
        around.pop();
        if let Some((_, group)) = around.last() {
            begin(list, last + 1, *group);
        }
    }
}

fn begin(list: &mut Vec<(u64, u32)>, start: u64, group: u32) {
    match list.last_mut() {
        Some(last) if last.0 == start => last.1 = group,
        Some(last) if last.1 == group => {}
        _ => list.push((start, group)),
    }
}
