//! Where a capture goes: a pipe, a file, or a ring of files.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where whole blocks go.
pub struct Files {
    path: PathBuf,
    out: Box<dyn Write>,
    /// Bytes of a file, and how many of them there are, if there are several.
    ring: Option<(u64, Option<u32>)>,
    /// What each file begins with: the section and its interfaces.
    head: Vec<u8>,
    written: u64,
    number: u32,
}

impl Files {
    /// Writes to `path`; `-` is standard output. With a `size`, a new file begins when one has that many
    /// bytes: their names end with a number, and of `count` files the oldest is written over.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path, size: Option<u64>, count: Option<u32>) -> io::Result<Files> {
        let mut files = Files {
            path: path.to_owned(),
            out: Box::new(io::sink()),
            ring: size.map(|size| (size, count)),
            head: Vec::new(),
            written: 0,
            number: 0,
        };
        files.out = match path == Path::new("-") {
            true => Box::new(io::stdout()),
            false => Box::new(File::create(files.name())?),
        };
        Ok(files)
    }

    /// The file that is written.
    fn name(&self) -> PathBuf {
        let Some((_, count)) = self.ring else { return self.path.clone() };
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{}", count.map_or(self.number, |count| self.number % count)));
        name.into()
    }

    /// Writes blocks that each file begins with.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(&mut self, blocks: &[u8]) -> io::Result<()> {
        self.head.extend_from_slice(blocks);
        self.write(blocks)
    }

    /// Writes one block, into the next file if this one is full.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, block: &[u8]) -> io::Result<()> {
        let full = |(size, _): &(u64, Option<u32>)| self.written + block.len() as u64 > *size;
        if self.ring.as_ref().is_some_and(full) && self.written > self.head.len() as u64 {
            self.out.flush()?;
            self.number += 1;
            self.out = Box::new(File::create(self.name())?);
            self.out.write_all(&self.head)?;
            self.written = self.head.len() as u64;
        }
        self.written += block.len() as u64;
        self.out.write_all(block)
    }

    /// Has the system have what was written.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
