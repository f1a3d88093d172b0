//! Access lists: which frames may pass a port.
//!
//! Theory of operation. A list has rules in their order; the first that matches a frame says whether it
//! passes, and the list's default if none does. Rules know no connections. What they look at is taken out of
//! a frame once, as seven words ([`Headers`]), from the bytes in private memory that the receiver gets, too.
//!
//! A rule becomes *entries*: a mask and what the words are under it. A set of four prefixes makes four, a
//! range of ports as many as it has prefixes. Entries of one mask, a *shape*, lie in a hash table together
//! ([`Acl`]: Srinivasan, Suri and Varghese's tuple space search, 1999). The search goes by the shapes in the
//! order of their first rules, and ends when no other can have an earlier one. Frames of a flow have the same
//! words, so each core remembers what was found for them ([`AclCache`]).
//!
//! **What cannot be seen.** Behind the first fragment of a packet there are no ports: a rule with ports that
//! permits lets later fragments of its addresses pass, which are worth nothing without the first; one that
//! denies says nothing of them. Ports and flags may also lie behind the bytes at hand (`packet::HEAD`): IPv6
//! with extension headers, and the flags of TCP over IPv6. Then a rule that asks for them and denies matches,
//! and one that permits does not: what is not seen never opens anything.

mod cache;
mod headers;
mod rule;
mod table;
#[cfg(test)]
mod tests;

pub use cache::AclCache;
pub use headers::Headers;
pub use rule::{read_rules, Action, BadRule, Rule};
pub use table::Acl;
