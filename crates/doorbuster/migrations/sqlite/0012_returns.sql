-- Money on its way back, beside a provider that is silent, and outside of Doorbuster.

-- By provider, since one that is silent must not hold up the others.
drop index payments_to_refund;

create index payments_to_refund on payments (provider, next_try_at) where next_try_at is not null;

-- How much of the money went back by refunds that are none of ours, at least, as far as the provider told: somebody made
-- them in its console. In minor units; nothing when none did.
alter table payments add column back_elsewhere integer
    constraint payments_back_elsewhere_counts check (back_elsewhere > 0);

create index payments_back_elsewhere on payments (payment_no) where back_elsewhere is not null;
