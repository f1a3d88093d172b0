//! `-X`: every frame in hexadecimal on standard output.

use std::fmt::Write;

use super::end::{Sink, Source};

/// Prints what passes.
pub struct Dump<S>(pub S);

/// Length, then sixteen bytes a line with what of them is ASCII.
fn text(bytes: &[u8]) -> String {
    let mut text = format!("len {}\n", bytes.len());
    for (line, bytes) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let show = |&byte: &u8| if (b' '..=b'~').contains(&byte) { char::from(byte) } else { '.' };
        let ascii: String = bytes.iter().map(show).collect();
        // Writing into a text cannot fail.
        let _ = writeln!(text, "{:5}: {:<47}  {ascii}", 16 * line, hex.join(" "));
    }
    text
}

fn show(bytes: &[u8]) {
    // A closed output is no reason to stop.
    let _ = crate::print(&text(bytes));
}

impl<S: Source> Source for Dump<S> {
    fn write(&mut self, buffer: &mut [u8]) -> usize {
        let len = self.0.write(buffer);
        show(&buffer[..len]);
        len
    }
}

impl Sink for Dump<()> {
    const READS: bool = true;

    fn frame(&mut self, bytes: &[u8]) {
        show(bytes);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_dump_shows_bytes_and_text() {
        let bytes: Vec<u8> = (b'a'..=b'p').chain([0, b'~']).collect();
        assert_eq!(
            super::text(&bytes),
            "len 18\n    0: 61 62 63 64 65 66 67 68 69 6a 6b 6c 6d 6e 6f 70  abcdefghijklmnop\n   \
             16: 00 7e                                            .~\n"
        );
    }
}
