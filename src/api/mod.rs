//! The resources: types, schema rules, names, conditions. No I/O.

pub mod balancing;
pub mod capacity_pool;
pub mod conditions;
pub mod crd;
pub mod game_server;
pub mod game_server_claim;
pub mod group;
pub mod names;
pub mod ports;

pub use balancing::{
    BalancingStrategy, Eviction, GameServerProtectionPolicy, GroupPool, InstanceDefinition, SuspendedAction,
};
pub use capacity_pool::{
    Advice, CapacityPool, CapacityPoolSpec, CapacityPoolStatus, Evidence, EvidenceKind, Override, Viability,
};
pub use game_server::{
    Capacity, CapacityType, Claim, ClaimStatus, End, EndReason, GameServer, GameServerPort, GameServerSpec,
    GameServerStatus, Health, Instance, InstanceStatus, Players, Seats, Shutdown, State,
};
pub use game_server_claim::{
    ClaimPhase, ClaimableStatus, GameServerClaim, GameServerClaimSpec, GameServerClaimStatus, ServerSelector,
};
pub use group::{
    Agent, AgentProtocol, ClaimPolicy, ClaimStrategy, Confirmation, DeletionPolicy, GameServerGroup,
    GameServerGroupSpec, GameServerGroupStatus, Phase, Prefer, Registration, ServerCounts, Sharing,
};
pub use ports::{AddressFamily, Addressing, NodeAddressType, Port, PortPolicy, PortProtocol};
