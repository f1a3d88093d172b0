//! The system's files of users and of groups (passwd(5), group(5)).

use std::io;

use super::broker::{obtain, Request};
use super::{open_text, read};

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountEntry {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// A user's group.
    pub group: Option<u32>,
}

/// The file of users, or of groups.
pub fn file(groups: bool) -> &'static str {
    ["/etc/passwd", "/etc/group"][usize::from(groups)]
}

/// The first user, or group, that `is` the one.
///
/// # Errors
/// What the system says.
pub fn find(groups: bool, is: impl Fn(&AccountEntry) -> bool) -> io::Result<Option<AccountEntry>> {
    let text = obtain(&Request::Accounts { groups }, &[], || open_text(file(groups).as_ref()));
    Ok(entries(&read(text)?).find(is))
}

/// The name of a user, or group; its number where it has none.
pub fn name_of(groups: bool, id: u32) -> String {
    let found = find(groups, |entry| entry.id == id);
    found.ok().flatten().map_or_else(|| id.to_string(), |entry| entry.name)
}

fn entries(text: &str) -> impl Iterator<Item = AccountEntry> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?);
        Some(AccountEntry { name, id, group: fields.next().and_then(|group| group.parse().ok()) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let text = "root:x:0:7:root:/root:/bin/sh\n# x\n\nbad:x:y:1\nusers:x:100:\n";
        let of = |name: &str, id, group| AccountEntry { name: name.to_owned(), id, group };
        assert_eq!(entries(text).collect::<Vec<_>>(), [of("root", 0, Some(7)), of("users", 100, None)]);
    }
}
