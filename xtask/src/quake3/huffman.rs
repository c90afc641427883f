//! Adaptive Huffman coding after Faller, Gallager and Knuth, as idTech 3 packs a `connect`.
//!
//! Both ends start with one leaf that stands for every byte not yet seen, and change the tree in the same way after
//! each byte, so no table is sent.

use anyhow::{Context as _, Result};

/// Packs `bytes`: their count in two bytes, then the codes, the first bit in each byte's lowest place.
pub(super) fn pack(bytes: &[u8]) -> Result<Vec<u8>> {
    let count = u16::try_from(bytes.len()).context("more than 65,535 bytes cannot be packed")?;
    let mut tree = Tree::new();
    let mut bits = Vec::new();
    for &byte in bytes {
        if let Some(position) = tree.position(Content::Byte(byte)) {
            bits.extend(tree.code(position));
            tree.count(position);
        } else {
            bits.extend(tree.code(tree.unseen()));
            bits.extend((0..8).rev().map(|place| byte >> place & 1 == 1));
            tree.add(byte);
        }
    }
    let codes =
        bits.chunks(8).map(|chunk| chunk.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit)));
    let mut packed = count.to_be_bytes().to_vec();
    packed.extend(codes);
    Ok(packed)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Every byte that has not been seen.
    Unseen,
    Byte(u8),
    /// The parent of the nodes at this place and the next.
    Parent(usize),
}

struct Node {
    weight: u32,
    content: Content,
}

/// The nodes from the heaviest, the root, to the lightest, the unseen bytes. Siblings stand side by side, the
/// right one (bit 1) before the left one (bit 0): that order is the coding's invariant, and makes links upward
/// needless.
struct Tree(Vec<Node>);

impl Tree {
    fn new() -> Self {
        Self(vec![Node { weight: 0, content: Content::Unseen }])
    }

    fn position(&self, content: Content) -> Option<usize> {
        self.0.iter().position(|node| node.content == content)
    }

    fn unseen(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// The parent of the node at `position`; none for the root.
    fn parent(&self, position: usize) -> Option<usize> {
        let right = if position % 2 == 1 { position } else { position.checked_sub(1)? };
        self.position(Content::Parent(right))
    }

    /// The bits that lead from the root to the node at `position`.
    fn code(&self, position: usize) -> Vec<bool> {
        let path = std::iter::successors(Some(position), |&position| self.parent(position));
        let mut code: Vec<_> =
            path.take_while(|&position| position > 0).map(|position| position % 2 == 1).collect();
        code.reverse();
        code
    }

    /// The leaf of the unseen splits into the new byte's and its own.
    fn add(&mut self, byte: u8) {
        let split = self.unseen();
        self.0.pop();
        self.0.extend([
            Node { weight: 1, content: Content::Parent(split + 1) },
            Node { weight: 1, content: Content::Byte(byte) },
            Node { weight: 0, content: Content::Unseen },
        ]);
        if let Some(parent) = self.parent(split) {
            self.count(parent);
        }
    }

    /// Counts one more occurrence of the node at `position` and of all above it. Each first takes the place of
    /// the first node as heavy as itself, so that the order by weight still holds after it has grown.
    fn count(&mut self, position: usize) {
        let mut current = Some(position);
        while let Some(position) = current {
            let leader = self.leader(position);
            let place = if Some(leader) == self.parent(position) { position } else { leader };
            self.0.swap(position, place);
            if let Some(node) = self.0.get_mut(place) {
                node.weight += 1;
            }
            current = self.parent(place);
        }
    }

    fn leader(&self, position: usize) -> usize {
        let weight = self.0.get(position).map(|node| node.weight);
        self.0.iter().position(|node| Some(node.weight) == weight).unwrap_or(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_what_a_server_unpacks() {
        // Worked by hand: eight bits of "a", one bit for the second, then the way to the unseen and eight bits of "b".
        assert_eq!(pack(b"aab").unwrap(), [0, 3, 0b1000_0110, 0b0001_1001, 0b0000_0001]);
        assert_eq!(pack(b"").unwrap(), [0, 0]);
        // Settings as a client sends them, in the coding that ioquake3 1.36 was seen to take.
        let packed = pack(br#""\protocol\71\name\Ann\rate\25000""#).unwrap();
        assert_eq!(
            packed,
            [
                0x00, 0x22, 0x44, 0x74, 0x70, 0x88, 0x13, 0xec, 0xc7, 0xa5, 0x61, 0x2c, 0xd8, 0xe8, 0xb0,
                0x1b, 0xc6, 0x05, 0xbb, 0xc7, 0x50, 0xd8, 0x2e, 0xa6, 0x03, 0x82, 0x3a, 0x7f, 0xff, 0x6f,
                0x16, 0xa6, 0x0f, 0xab, 0xc1, 0x70, 0x15, 0x01,
            ]
        );
    }

    #[test]
    fn more_than_its_count_holds_is_not_packed() {
        assert!(pack(&vec![0; 1 << 16]).is_err());
    }
}
