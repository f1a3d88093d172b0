//! What was had before a port asked for it: holders and disks' files, whose servers may take their time.
//!
//! Theory of operation. Ports are started one after the other, while nothing else can be asked or changed. So
//! before that, all that they will ask for is fetched side by side, and under no lock, and each port finds
//! there what came of it. What no port has asked for is dropped with the [`Fetched`].

use std::collections::BTreeMap;
use std::sync::Mutex;

/// What was fetched, by what it was fetched for.
pub struct Early<K, V>(Mutex<BTreeMap<K, V>>);

/// Keeps what was fetched, for as long as this lives.
pub struct Fetched<K: Ord + 'static, V: 'static>(Vec<K>, &'static Early<K, V>);

impl<K: Ord + Clone + Send + Sync, V: Send> Early<K, V> {
    /// Nothing yet.
    pub const fn new() -> Early<K, V> {
        Early(Mutex::new(BTreeMap::new()))
    }

    /// Has `fetch` fetch all of `keys`, `at_a_time` at most, on threads called `name`.
    pub fn fetch(
        &'static self,
        name: &str,
        at_a_time: usize,
        keys: Vec<K>,
        fetch: impl Fn(&K) -> V + Sync,
    ) -> Fetched<K, V> {
        let left = Mutex::new(keys.iter());
        let next = || crate::lock(&left).next();
        let work = || {
            while let Some(key) = next() {
                let value = fetch(key);
                crate::lock(&self.0).insert(key.clone(), value);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..keys.len().min(at_a_time) {
                // Without a thread the others, and this one, do its work.
                let _ = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
        Fetched(keys, self)
    }

    /// What was fetched for `key`, once.
    pub fn take(&self, key: &K) -> Option<V> {
        crate::lock(&self.0).remove(key)
    }
}

impl<K: Ord, V> Drop for Fetched<K, V> {
    fn drop(&mut self) {
        let mut all = crate::lock(&self.1 .0);
        let left: Vec<_> = self.0.iter().filter_map(|key| all.remove(key)).collect();
        drop(all);
        // Under no lock: closing a file may wait for its server, too.
        drop(left);
    }
}
