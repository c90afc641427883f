//! Tells a static program from one that needs a loader, from its ELF headers.

use anyhow::{Context, Result, bail, ensure};

/// The program header that names the dynamic loader (`PT_INTERP` in elf(5)).
const PT_INTERP: u32 = 3;

/// Fails unless `program` is a 64-bit little-endian ELF file that asks for no dynamic loader, so that it runs in an
/// image that holds nothing else.
pub(crate) fn require_static(program: &[u8]) -> Result<()> {
    ensure!(program.starts_with(b"\x7fELF"), "it is no ELF file");
    ensure!(program.get(4..6) == Some(&[2, 1]), "it is not 64-bit little-endian");
    let table = usize::try_from(u64::from_le_bytes(field(program, 32)?))?;
    let entry_size = usize::from(u16::from_le_bytes(field(program, 54)?));
    let entries = usize::from(u16::from_le_bytes(field(program, 56)?));
    ensure!(entries > 0, "it has no program headers");
    for index in 0..entries {
        let offset =
            table.checked_add(index * entry_size).context("its program headers lie beyond any memory")?;
        if u32::from_le_bytes(field(program, offset)?) == PT_INTERP {
            bail!("it needs a dynamic loader");
        }
    }
    Ok(())
}

fn field<const SIZE: usize>(program: &[u8], offset: usize) -> Result<[u8; SIZE]> {
    program.get(offset..).and_then(|rest| rest.first_chunk()).copied().context("it is cut short")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PT_LOAD: u32 = 1;

    fn elf(headers: &[u32]) -> Vec<u8> {
        let mut program = vec![0; 64];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        program[32] = 64;
        program[54] = 56;
        program[56] = u8::try_from(headers.len()).unwrap();
        for kind in headers {
            program.extend(kind.to_le_bytes());
            program.extend([0; 52]);
        }
        program
    }

    #[test]
    fn program_without_a_loader_is_static() {
        require_static(&elf(&[PT_LOAD, PT_LOAD])).unwrap();
    }

    #[test]
    fn program_with_a_loader_is_refused() {
        let error = require_static(&elf(&[PT_LOAD, PT_INTERP])).unwrap_err();
        assert!(error.to_string().contains("dynamic loader"));
    }

    #[test]
    fn what_is_no_whole_program_is_refused() {
        assert!(require_static(b"#!/bin/sh\n").is_err());
        assert!(require_static(b"\x7fELF\x02\x01").is_err());
        assert!(require_static(&elf(&[])).is_err());
        let mut cut = elf(&[PT_LOAD]);
        cut.truncate(66);
        assert!(require_static(&cut).is_err());
        let mut astray = elf(&[PT_LOAD]);
        astray[32..40].fill(0xff);
        assert!(require_static(&astray).is_err());
    }
}
