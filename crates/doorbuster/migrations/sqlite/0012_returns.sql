-- Money on its way back, beside a provider that is silent, and outside of Doorbuster.

-- By provider, since one that is silent must not hold up the others.
drop index payments_to_refund;

create index payments_to_refund on payments (provider, next_try_at) where next_try_at is not null;
